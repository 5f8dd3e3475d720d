"""``bdpvi demo`` and ``bdpvi study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._runtime import validate
from bdpvi.commands import options
from bdpvi.commands.options import Json, Quiet

STUDIES = {
    "weibull-clipping": "ε against σ for heavy-tailed gradients, clipped at quantiles of their "
    "norms and not.",
    "steps": "ε over 10,000 steps at several noise levels.",
    "orders": "ε against the order λ for several clipping norms.",
    "composition": "Hölder's composition against naive composition and the panel.",
    "coverage": "How often each estimator's bound falls below the truth, and the rule that "
    "predicts it.",
    "networks": "Where the ε published for networks comes from, beside DP-SGD's worst case.",
    "federated": "The published schemes for federated learning: which holds for whom.",
}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the table.")] = Path("demo"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the main job on data that comes along: fit, release, account, predict, draw a figure.

    Fits the breast cancer table (455 training records), and sets the test accuracy of a posterior
    sample beside its worst-case and its Bayesian ε.
    """
    from rich.console import Console

    from bdpvi.commands import demonstration

    result = demonstration.run(out, progress=not quiet)
    if as_json:
        options.print_json(result.to_dict())
    else:
        result.print(Console())


def study(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")],
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("studies"),
    scale: Annotated[float, typer.Option(help="Fraction of the full size, in (0, 1].")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study and write its numbers (CSV), figures and findings."""
    validate.choice("name", name, STUDIES)
    from bdpvi._runtime import log, progress, store
    from bdpvi.studies import catalogue

    store.check_writable(out)
    track = progress.silent if quiet else progress.bar
    with log.step(f"study {name}"):
        finding = catalogue.STUDIES[name](out, seed=seed, track=track, scale=scale)
    if as_json:
        options.print_json({"text": finding.text, "files": finding.files})
    else:
        print(finding.text)
        print("Wrote " + ", ".join(str(path) for path in finding.files))


study.__doc__ = "\n\n".join(
    [study.__doc__ or "", *(f"{name}: {question}" for name, question in STUDIES.items())]
)
