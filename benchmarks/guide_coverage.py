"""Coverage of a trained guide's intervals on the examples of ``examples/private``, and on counts.

    python benchmarks/guide_coverage.py [--tables 40] [--epsilon 1 3] [--only NAME ...]

Each table is simulated anew from the same truth and fitted by ``fit_private`` with its defaults, at
δ = 1e-5. Intervals are between the 2.5 and 97.5 % quantiles of 1000 draws. A model of hidden
structure is known only up to symmetries, so each quantity is one that records identify: an effect,
a level of a curve, an entry of a covariance. ``least`` is the coverage of the worst of them, and
``z`` the root mean square of (mean − truth)/sd, which should be 1. ``measured`` is the share of
quantities that follow from no latent variable with the note that privacy noise dominates it; the
next two columns are theirs. ``reliable`` is the share of summaries which do not say no.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path

import torch
from printed import command
from torch import Tensor
from zeros import CHANCE, COUNTS, RATE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "private"))

from _example import DELTA, Example

import bdpvi

Latents = Mapping[str, Tensor]
LEVEL = 0.95
GRID = torch.cartesian_prod(torch.linspace(-1.5, 1.5, 5), torch.linspace(-1.5, 1.5, 5))


def seen(name: str, example: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    """Return the quantities of an example as a function of draws, (k, q), and their truth, (q,)."""
    plain: dict[str, dict[str, str]] = {
        "robust": {"w": "WEIGHTS", "intercept": "INTERCEPT"},
        "mixture": {"shares": "SHARES", "locs": "LOCS", "scales": "SCALES"},
        "autoencoder": {"noise": "NOISE"},
        "survival": {"w": "WEIGHTS", "intercept": "INTERCEPT", "shape": "SHAPE"},
    }
    if name in COUNTS:
        return lambda found: torch.cat([found["chance"], found["rate"]], 1), torch.cat(
            [CHANCE, RATE]
        )
    if name in plain:
        sites = plain[name]
        truth = [torch.as_tensor(getattr(example, at)).flatten() for at in sites.values()]
        return lambda found: torch.cat([_flat(found[site]) for site in sites], 1), torch.cat(truth)
    return _CURVES[name](example)


def _flat(draws: Tensor) -> Tensor:
    """Return draws as (k, q)."""
    return draws.reshape(len(draws), -1)


def _group_effects(one: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    def found(latents: Latents) -> Tensor:
        centre, spread = latents["centre"][:, None], latents["spread"][:, None]
        return torch.cat([latents["w"], centre + spread * latents["place"]], 1)

    return found, torch.cat([one.WEIGHTS, one.EFFECTS])  # type: ignore[attr-defined]


def _spline(one: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    at = torch.linspace(1, 23, 12)
    return lambda latents: latents["w"] @ one.basis(at).T.to(latents["w"]), one.true(at)  # type: ignore[attr-defined]


def _factors(one: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    place = torch.triu_indices(10, 10)

    def entries(loadings: Tensor, noise: Tensor) -> Tensor:
        whole = loadings.mT @ loadings + torch.diag_embed(noise.square())
        return whole[..., place[0], place[1]]

    truth = entries(one.LOADINGS.T, one.NOISE)  # type: ignore[attr-defined]
    return lambda latents: entries(latents["loadings"], latents["noise"]), truth


def _two_layers(one: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    def found(latents: Latents) -> Tensor:
        at = GRID.to(latents["noise"])
        return torch.vmap(lambda each: one.network(at, each))(dict(latents))  # type: ignore[attr-defined,no-any-return]

    return found, one.true(GRID)  # type: ignore[attr-defined]


def _gaussian_process(one: Example) -> tuple[Callable[[Latents], Tensor], Tensor]:
    def found(latents: Latents) -> Tensor:
        at: Tensor = one.features(GRID.to(latents["u"]))  # type: ignore[attr-defined]
        return latents["height"][:, None] * (latents["u"] @ at.T)

    return found, one.true(GRID)  # type: ignore[attr-defined]


_CURVES = {
    "group_effects": _group_effects,
    "spline": _spline,
    "factors": _factors,
    "two_layers": _two_layers,
    "gaussian_process": _gaussian_process,
}


def measured(of: Callable[[Latents], Tensor], release: bdpvi.Release) -> Tensor:
    """Return which quantities follow from measured latents alone, (q,): others do not move them."""
    guide = release.guide
    assert guide is not None
    one = {name: value[0].double() for name, value in release.latents.items()}

    def at(values: dict[str, Tensor]) -> Tensor:
        return of({name: value.unsqueeze(0) for name, value in values.items()})[0]

    moved, seen, start = torch.func.jacrev(at)(one), torch.tensor(True), 0
    for name, shape in guide.sites.items():
        size = torch.Size(shape).numel()
        flags = torch.tensor(guide.measured[start : start + size])
        follows, start = moved[name].reshape(len(moved[name]), -1).abs() > 1e-9, start + size
        if follows.shape[1] != size:  # such as shares, which one number less describes
            follows, flags = follows.any(1, keepdim=True), flags.all().unsqueeze(0)
        seen = seen & (~follows | flags).all(1)
    return seen


NAMES = (
    "group_effects", "spline", "robust", "mixture", "factors", "autoencoder", "two_layers",
    "gaussian_process", "survival", *COUNTS,
)  # fmt: skip


def row(name: str, tables: int, records: int, epsilon: float, steps: int) -> str:
    """Return a line of the table."""
    example: Example = COUNTS.get(name) or import_module(name)  # type: ignore[assignment]
    of, truth = seen(name, example)
    hits, z, known, reliable = [], [], [], []
    for seed in range(tables):
        torch.manual_seed(seed)
        model, guide = example.fresh()
        release = bdpvi.fit_private(
            model,
            example.simulated(records, seed),
            epsilon=epsilon,
            delta=DELTA,
            guide=guide,
            route=bdpvi.DPVI(loss=example.LOSS, steps=steps, progress=False),
        )
        values = of({n: one.double() for n, one in release.latents.items()})
        low, high = values.quantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).double(), 0)
        hits.append((low < truth) & (truth < high))
        z.append((values.mean(0) - truth) / values.std(0))
        known.append(measured(of, release))
        reliable.append(float(release.summary().reliable is not False))
    hit, of_these, off = torch.stack(hits).double(), torch.stack(known), torch.stack(z)
    each = torch.stack([one[of_it].mean() for one, of_it in zip(hit, of_these, strict=True)])
    cells = [_mean(hit, hit.mean(1)), f"{hit.mean(0).min():.2f}"]
    cells += [f"{off.square().mean().sqrt():.2f}", f"{100 * of_these.double().mean():.0f} %"]
    cells += [_mean(hit[of_these], each[~each.isnan()])]
    cells += [f"{off[of_these].square().mean().sqrt():.2f}" if len(off[of_these]) else "–"]
    cells += [f"{100 * sum(reliable) / tables:.0f} %", str(tables)]
    return " | ".join([f"| {name} | {records} | {epsilon:g} | {len(truth)}", *cells]) + " |"


def _mean(hits: Tensor, tables: Tensor) -> str:
    """Return the mean, with its standard error from those of several tables."""
    error = f" ± {tables.std() / len(tables) ** 0.5:.3f}" if len(tables) > 1 else ""
    return f"{hits.mean():.3f}{error}" if len(tables) else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--records", type=float, nargs="+", default=[1e4])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("command:", command())
    print(
        "| example | N | ε | quantities | coverage | least | z | measured | coverage | z | "
        "reliable | tables |"
    )
    print("| --- " * 12 + "|")
    for name, records, epsilon in product(given.only, given.records, given.epsilon):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(row(name, given.tables, int(records), epsilon, given.steps), flush=True)


if __name__ == "__main__":
    main()
