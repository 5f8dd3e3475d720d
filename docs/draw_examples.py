"""Write the page of private examples: what each is, ε, what privacy cost, and its figure.

python docs/draw_examples.py [--out docs/examples]
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


INTRODUCTION = """# Examples of private models

Pyro models as their authors write them, each fitted by `bdpvi.fit_private(model, data,
epsilon=1.0, route=bdpvi.DPVI())` with nothing tuned, to 10,000 simulated records. Each says what
privacy cost: the mean log density of new records under the best model without covariates or
structure, under the private fit, and under Pyro's own SVI without privacy, and the share of the
gain that is left. [Any Pyro model](../benchmarks.md#any-pyro-model) has more seeds and sizes. In
a checkout `python docs/draw_examples.py` writes this page anew, with fresh noise.
"""


def section(name: str, out: Path) -> str:
    """Run an example, draw its figure, and return its section."""
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
    return (
        f"## {heading.rstrip('.')}\n\n{first}{words}\n\n`python examples/private/{name}.py`:\n\n"
        f"```text\n{printed}\n```\n\n![{heading.rstrip('.')}]({figure})\n"
    )


def draw() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "examples")
    out: Path = parser.parse_args().out
    import torch

    sys.path.insert(0, str(ROOT / "examples" / "private"))
    torch.set_num_threads(1)
    sections = []
    for name in NAMES:
        sections.append(section(name, out))
        print("ran", name, flush=True)
    (out / "index.md").write_text("\n".join([INTRODUCTION, *sections]), encoding="utf-8")


if __name__ == "__main__":
    draw()
