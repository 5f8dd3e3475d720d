"""Coverage of a trained guide's intervals on the nine examples of ``examples/private``.

    python benchmarks/guide_coverage.py [--tables 40] [--steps 1000] [--only NAME ...]

Each table is simulated anew from the same truth and fitted by ``fit_private`` with its defaults, at
δ = 1e-5. Intervals are between the 2.5 and 97.5 % quantiles of 1000 draws. A model of hidden
structure is known only up to symmetries, so each quantity is one that records identify: an effect,
a level of a curve, an entry of a covariance. ``least`` is the coverage of the worst of them, and
``z`` the standard deviation of (mean − truth)/sd, which should be 1. ``noted`` is the share of
latent variables with the note that privacy noise dominates them, and ``without note`` the coverage
of quantities that follow from none of these, where that is known; ``reliable`` is the share of
summaries which do not say no.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import torch
from printed import command
from torch import Tensor

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


def noted(name: str, release: bdpvi.Release, quantities: int) -> Tensor | None:
    """Return which quantities follow from a latent variable with a note, (q,), if it is known."""
    rows = {
        coefficient.name: bool(coefficient.note) for coefficient in release.summary().coefficients
    }
    flags = list(rows.values())
    if name == "group_effects":
        common = rows["centre"] or rows["spread"]
        flags = [rows[f"w[{j}]"] for j in range(4)]
        flags += [common or rows[f"place[{k}]"] for k in range(quantities - 4)]
    elif name in _CURVES or len(flags) != quantities:
        return None
    return torch.tensor(flags)


NAMES = (
    "group_effects", "spline", "robust", "mixture", "factors", "autoencoder", "two_layers",
    "gaussian_process", "survival",
)  # fmt: skip


def row(name: str, tables: int, records: int, epsilon: float, steps: int) -> str:
    """Return a line of the table."""
    example: Example = import_module(name)
    of, truth = seen(name, example)
    hits, z, flags, share, reliable = [], [], [], [], []
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
        assert release.guide is not None
        values = of({n: one.double() for n, one in release.latents.items()})
        low, high = values.quantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).double(), 0)
        hits.append((low < truth) & (truth < high))
        z.append((values.mean(0) - truth) / values.std(0))
        share.append(1 - torch.tensor(release.guide.measured).double().mean())
        flags.append(noted(name, release, len(truth)))
        reliable.append(float(release.summary().reliable is not False))
    hit = torch.stack(hits).double()
    error = hit.mean(1).std() / tables**0.5
    known = [~flag for flag in flags if flag is not None]
    plain = f"{hit[torch.stack(known)].mean():.3f}" if known else "–"
    return (
        f"| {name} | {len(truth)} | {hit.mean():.3f} ± {error:.3f} | {hit.mean(0).min():.2f} | "
        f"{torch.stack(z).std():.2f} | {100 * torch.stack(share).mean():.0f} % | {plain} | "
        f"{100 * sum(reliable) / tables:.0f} % | {tables} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=40)
    parser.add_argument("--records", type=float, default=1e4)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("command:", command())
    print(
        "| example | quantities | coverage | least | z | noted | without note | reliable | tables |"
    )
    print("| --- " * 9 + "|")
    for name in given.only:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = row(name, given.tables, int(given.records), given.epsilon, given.steps)
            print(found, flush=True)


if __name__ == "__main__":
    main()
