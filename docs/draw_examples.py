"""Write a page for each private example: what it is, ε, what privacy cost, and its figure.

python docs/draw_examples.py [--only NAME ...] [--out docs/examples]
"""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "group_effects", "spline", "robust", "mixture", "factors", "autoencoder", "two_layers",
    "gaussian_process", "survival",
)  # fmt: skip


def write(name: str, out: Path) -> None:
    """Run an example and write its page and figure."""
    from _example import main

    example = import_module(name)
    title, _, *rest = str(example.__doc__).strip().split("\n\n")
    figure = f"{name.replace('_', '-')}.png"
    said = io.StringIO()
    with redirect_stdout(said):
        main(example, ["--out", str(out / figure)])
    printed = "\n".join(said.getvalue().splitlines()[:-1])
    words = "\n\n".join(" ".join(part.split()) for part in rest)
    heading, _, more = title.replace("\n", " ").partition(": ")
    first = f"{more[:1].upper()}{more[1:]} " if more else ""
    (out / f"{name.replace('_', '-')}.md").write_text(
        f"# {heading.rstrip('.')}\n\n{first}{words}\n\n"
        f"10,000 simulated records, `python examples/private/{name}.py`:\n\n"
        f"```text\n{printed}\n```\n\n![{heading.rstrip('.')}]({figure})\n",
        encoding="utf-8",
    )


def draw() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "examples")
    given = parser.parse_args()
    import torch

    sys.path.insert(0, str(ROOT / "examples" / "private"))
    torch.set_num_threads(1)
    for name in given.only:
        write(name, given.out)
        print("wrote", name, flush=True)


if __name__ == "__main__":
    draw()
