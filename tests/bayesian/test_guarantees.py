"""What a release promises, attacked: public temperatures, every direction, low bits, seeds."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from accounts import Accountant, bayes, elsewhere, evidence_of, worst_of
from scipy import stats
from scipy.special import ndtri
from simulated import logistic_data
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Optimum
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.guarantees import BayesianDP, Guarantee, TypicalRecord, WorstCaseDP
from bdpvi.bayesian.mode.plan import planned_temperature
from bdpvi.bayesian.neighbours.rounding import Reach, rounding_error
from bdpvi.datasets.dataset import People
from bdpvi.guides import FullRank, MeanField
from bdpvi.noise import secure
from bdpvi.noise.secure import Lattice, total_variation
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon, gaussian_guarantee
from bdpvi.privacy.groups import group
from bdpvi.privacy.rounding import rounding_delta

CLIP, SCALE, DELTA = 0.5, 0.3, 1e-5


def bounded(data: Dataset, noise_scale: float | None = 1.0) -> bdpvi.Fit:
    """Return a fit at the optimum of a clipped model, with a public noise scale."""
    model = bdpvi.BayesianLogisticRegression(
        clip=CLIP, prior_scale=SCALE, limit=2.0, intercept=True
    )
    guide = MeanField(model, noise_scale=noise_scale)
    people = data.of_people(People())  # with a ledger of their own
    return bdpvi.fit(model, guide, people, neighbours=Optimum(), progress=False)


@pytest.fixture
def fit(data: Dataset) -> bdpvi.Fit:
    return bounded(data)


def joined(data: Dataset, x: list[float], y: float) -> Dataset:
    return Dataset(
        torch.cat([data.x, torch.tensor([x], dtype=data.x.dtype)]),
        torch.cat([data.y, torch.tensor([y], dtype=data.y.dtype)]),
    )


# --- temperatures ---------------------------------------------------------------------------------


def test_worst_case_temperature_is_the_same_for_every_data_set(data: Dataset) -> None:
    added = bounded(joined(data, [2.0, -2.0, 2.0], 1.0))
    elsewhere = bounded(logistic_data(300, 3, seed=9))
    temperatures = {
        WorstCaseDP().temperature(one, 3, 0.02, DELTA) for one in (bounded(data), added, elsewhere)
    }
    assert len(temperatures) == 1
    (tau,) = temperatures
    # Against the closed form, found from the constants alone: μ² = k (C s²)² / (τ noise²).
    variance = 3 * (CLIP * SCALE**2) ** 2 / tau
    assert 0.998 * 0.02 <= gaussian_epsilon(variance, DELTA) <= 0.02


def test_the_usual_release_for_an_epsilon_is_worst_case_and_has_both_numbers(
    fit: bdpvi.Fit,
) -> None:
    released = bdpvi.release(
        fit, 2, epsilon=0.3, accounting=bdpvi.bayesian.Accounting(conversion="cks")
    )
    assert released.cost.worst_case is not None
    assert 0.999 * 0.3 <= worst_of(released.cost).epsilon <= 0.3
    assert bayes(released.cost).epsilon <= worst_of(released.cost).epsilon
    # By CKS 60 records are reliable at no ε of their own; the worst-case one implies the Bayesian.
    assert bayes(released.cost).reliable
    assert bayes(released.cost).epsilon == worst_of(released.cost).epsilon
    assert released.receipt.bound.kind.value == "worst-case DP"
    assert released.receipt.bound.epsilon == 0.3
    assert released.receipt.source == "target"
    assert released.receipt.bayesian is None
    assert "to add or remove one record" in str(released.receipt)


def test_a_fit_without_bound_has_no_worst_case(data: Dataset) -> None:
    with pytest.raises(ValueError, match="no public noise_scale"):
        bdpvi.release(bounded(data, noise_scale=None), epsilon=1.0, guarantee=WorstCaseDP())


def test_worst_case_releases_add_up(fit: bdpvi.Fit) -> None:
    one = bdpvi.release(fit, epsilon=0.1).cost.worst_case
    two = bdpvi.release(fit, 3, epsilon=0.2).cost.worst_case
    assert one is not None
    assert two is not None
    charges = fit.ledger.charges()
    variance = (CLIP * SCALE**2) ** 2 * sum(c.draws / c.temperature for c in charges)
    assert two.epsilon == pytest.approx(gaussian_epsilon(variance, DELTA), rel=1e-3)
    with pytest.raises(
        bdpvi.BudgetExceededError,
        match=r"epsilon=0\.1 is spent.*2 charges made before: 1 draw at",
    ):
        bdpvi.release(fit, epsilon=0.1)


BY_PRICE = r"epsilon=0\.1 is missed by the price .* comes to worst-case DP: ε = 0\.11 at δ"


def test_a_budget_on_a_worst_case_release_does_not_look_at_the_data(
    fit: bdpvi.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether it is refused may depend on public numbers only: the worst-case ε decides.
    tau = WorstCaseDP().temperature(fit, 1, 0.11, DELTA)
    with pytest.raises(bdpvi.BudgetExceededError, match=BY_PRICE):
        bdpvi.release(fit, temperature=tau, epsilon=0.1)
    assert bayes(bdpvi.cost(fit, planned=Charge(1, tau))).epsilon <= 0.11


# --- relation -------------------------------------------------------------------------------------


def test_replacing_a_record_costs_more() -> None:
    # N(0, 1) against N(μ, 1), by mpmath: δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    variance = 0.1
    one = gaussian_guarantee(variance, DELTA)
    assert one is not None
    two = group(one, 2)
    assert two is not None
    for found, mu in ((one, math.sqrt(variance)), (two, 2 * math.sqrt(variance))):
        eps = mpmath.mpf(found.epsilon)
        delta = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
        assert float(delta) == pytest.approx(DELTA, rel=1e-6)
    # Where only ε and δ are known, by group privacy.
    plain = group(replace(one, distance=None), 2)
    assert plain is not None
    assert plain.epsilon == 2 * one.epsilon
    assert plain.delta == pytest.approx((1 + math.exp(one.epsilon)) * DELTA)


# --- every direction ------------------------------------------------------------------------------


def test_a_thin_second_panel_decides_whether_an_answer_is_reliable() -> None:
    """A light "remove" panel of 3,000 beside an "add" panel of 300 that one record decides."""
    light = GaussianPairs(torch.ones(3000, 1).double(), torch.full((3000, 1), 0.01).double())
    light.b2[:] *= torch.linspace(0.5, 1.0, 3000).double().unsqueeze(1)
    thin = torch.full((300, 1), 1e-4).double()
    thin[0] = 0.008
    panels = (
        Panel("remove", torch.arange(3000), light),
        Panel("add", torch.arange(300), GaussianPairs(torch.ones(300, 1).double(), thin)),
    )
    for conversion in bdpvi.privacy.conversions.CONVERSIONS:
        alone = Accountant(conversion=conversion)
        alone.step(GuideDraws(panels[:1]))
        both = Accountant(conversion=conversion)
        both.step(GuideDraws(panels))
        found = bayes(both.cost(1e-3))
        assert bayes(alone.cost(1e-3)).reliable
        assert "remove" in evidence_of(found).direction
        assert not found.reliable
        assert found.reason.startswith("in direction add")


# --- single records -------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1.0, 1.001])
def test_exposure_of_single_records(r: float) -> None:
    b2 = torch.linspace(1e-4, 0.04, 2000, dtype=torch.float64).unsqueeze(1)
    pairs = GaussianPairs(torch.full_like(b2, r), b2)
    accountant = Accountant()
    accountant.step(GuideDraws((Panel("remove", torch.arange(2000), pairs),), draws=2))
    found = accountant.exposure(1e-5)
    for value, rank in ((found.largest, 1999), (found.most, 1979), (found.median, 999)):
        variance = 2 * float(b2[rank])
        exact = gaussian_epsilon(variance, 1e-5)
        assert exact * (1 - 1e-3) <= value <= exact * (1.0001 if r == 1 else 1.25)
    assert found.most <= found.certified <= found.largest
    # 1 − γ of the binomial tolerance bound: rank with P(Bin(2000, 0.99) ≥ rank) ≤ γ.
    rank = int(stats.binom.isf(1e-6, 2000, 0.99)) + 1
    if r == 1:
        exact = gaussian_epsilon(2 * float(b2[min(rank, 1999)]), 1e-5)
        assert found.certified == pytest.approx(exact, rel=2e-3)
    few = Accountant()
    few.step(GuideDraws((Panel("remove", torch.arange(50), pairs.select(slice(50))),)))
    assert few.exposure(1e-5).certified == math.inf


def test_a_delta_that_leaves_a_record_unprotected_is_warned_of(data: Dataset) -> None:
    """60 records at δ = 1/50: one of them may be exposed altogether, and "reliable" be right.

    A refusal would tell 60 records from 49.
    """
    fitted = bounded(data, noise_scale=None)
    for call in (
        lambda: bdpvi.cost(fitted, delta=0.02, planned=Charge(1, 5.0)),
        lambda: bdpvi.release(fitted, temperature=5.0, delta=0.02, guarantee=BayesianDP()),
    ):
        with pytest.warns(UserWarning, match=r"delta=0\.02 is at least 1/N"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bdpvi.release(fitted, temperature=5.0, delta=0.02).receipt.bound.delta == 0.02
    # A worst-case δ is each record's own.
    assert bdpvi.release(bounded(data), epsilon=0.3, delta=0.02).receipt.bound.delta == 0.02
    others = bounded(logistic_data(60, 3, seed=1))
    with pytest.warns(UserWarning, match="at least 1/N"):
        bdpvi.release(others, epsilon=0.3, delta=0.02, guarantee=BayesianDP())


# --- receipts -------------------------------------------------------------------------------------


ORIGINS = {
    "format": "a constant",
    "samples": "the mechanism's output",
    "latents": "the samples, as the model's latent variables",
    "receipt.about": "the owner's description of the preprocessing bounds, what was declared, "
    "the source of the number of rows behind the settings, the part of the table "
    "used, and what the released weights show: that few columns matter, or a factor",
    "receipt.source": "how ε was found: one of four constants; and how many targets were "
    "refused before by looking at the records, which no ε covers",
    "receipt.together": "a constant and the ε of works by public settings, in this process; "
    "which of them were on the same rows is read from these, at an overlap of half",
    "receipt.draws": "the owner's choice",
    "receipt.temperature": "the owner's choice; from public settings; or from the data, on a grid",
    "receipt.noise_scale": "the guide's public number and the temperature",
    "receipt.step": "public settings and the temperature",
    **{
        f"receipt.{bound}.{name}": origin
        for bound in ("worst_case", "bayesian", "group", "typical")
        for name, origin in {
            "kind": "a constant",
            "epsilon": "the target; or from public settings; or, if not certified, from the "
            "data, up to two digits",
            "delta": "the owner's choice",
            "by": "names of methods: constants",
            "relation": "the neighbours that were asked for",
            "unit": "the owner's choice, who is protected",
            "observer": "a constant",
            "reliable": "from the data, one bit, for a Bayesian ε that is not certified only",
            "reason": "empty",
            "assumptions": "constants: which of them hold follows from how the table was read",
            "distance": "empty",
            "rounding": "zero",
            "evidence": "empty",
        }.items()
    },
    "receipt.group.share": "the owner's choice",
    "receipt.group.confidence": "from δ, or the owner's choice",
    "receipt.typical.share": "from the number of records: one of three constants",
    "receipt.typical.confidence": "a constant",
    "estimate": "the mechanism's output, or null",
    "guide": "the mechanism's output, or null",
    "parameters": "the mechanism's output; none for most models",
    "model": "hyper-parameters, chosen without looking at the data",
    "feature_names": "public preprocessing bounds",
    "preprocessing": "public preprocessing bounds, and what was declared",
}
"""The source of each field of a release's file. It contains nothing else."""


def fields(value: object, path: str = "") -> list[str]:
    """Return the paths of all fields, down to those whose origin is given as a whole."""
    if isinstance(value, dict) and path not in ORIGINS:
        return [f for k, v in value.items() for f in fields(v, f"{path}.{k}" if path else k)]
    return [path]


def test_every_field_of_the_public_file_has_an_origin(
    fit: bdpvi.Fit, data: Dataset, tmp_path: Path
) -> None:
    groups = BayesianDP(for_groups_of=0.5)
    every: list[Guarantee] = [WorstCaseDP(), BayesianDP(), groups, TypicalRecord()]
    found: set[str] = set()
    fits = [fit] * len(every) + [bounded(data)]  # the last tells of what came before
    for number, (one, guarantee) in enumerate(zip(fits, [*every, WorstCaseDP()], strict=True)):
        released = bdpvi.release(one, epsilon=0.3 + number, guarantee=guarantee)
        bdpvi.save_release(released, tmp_path / f"{number}.json")
        content = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))
        promised = {name: one for name, one in content["receipt"].items() if one is not None}
        found |= set(fields({**content, "receipt": promised}))
    assert found == set(ORIGINS)


def test_the_public_file_is_the_same_for_neighbours_but_for_its_samples(
    data: Dataset, tmp_path: Path
) -> None:
    texts = []
    for number, one in enumerate((data, data.without(5), joined(data, [2.0, 2.0, 2.0], 0.0))):
        elsewhere()
        named = replace(one, name="data", feature_names=data.feature_names)
        told = []
        for name in (f"{number}.json", f"{number}-again.json"):  # the second tells of the first
            released = bdpvi.release(bounded(named), 2, epsilon=0.3)
            bdpvi.save_release(released, tmp_path / name)
            content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
            del content["samples"], content["latents"]
            told.append(json.dumps(content))
        texts.append(told)
    assert texts[0] == texts[1] == texts[2]
    assert ["together" in one for one in texts[0]] == [False, True]


def test_an_epsilon_that_was_computed_is_rounded_up_and_says_so(data: Dataset) -> None:
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    fitted = bdpvi.fit(model, FullRank(model), data, neighbours=Optimum(), progress=False)
    released = bdpvi.release(fitted, temperature=20.0)
    assert released.receipt.source == "computed from the data, rounded up to two digits"
    assert released.receipt.bound.epsilon == float(f"{released.receipt.bound.epsilon:.1e}")
    assert (
        0
        <= released.receipt.bound.epsilon - bayes(released.cost).epsilon
        <= 0.1 * bayes(released.cost).epsilon
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=1), "format must be 5, got 1: .* release again"),
        (lambda c: c.pop("samples"), "samples must be"),
        (lambda c: c.update(samples=[[math.nan]]), "it cannot be read as JSON: NaN is not JSON"),
        (lambda c: c["model"].update(clip="x"), r"model.clip must be float \| None, got 'x'"),
        (lambda c: c["receipt"]["worst_case"].update(epsilon="1"), "receipt.worst_case.epsilon"),
        (lambda c: c["receipt"]["worst_case"].pop("delta"), "worst_case.delta is missing"),
        (lambda c: c["receipt"]["worst_case"].update(kind="Bayesian DP"), "worst_case.kind must"),
        (lambda c: c["receipt"].update(bayesian=c["receipt"]["worst_case"]), "one of four"),
    ],
)
def test_a_changed_file_is_refused_by_name(
    fit: bdpvi.Fit, tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    path = tmp_path / "release.json"
    bdpvi.save_release(bdpvi.release(fit, epsilon=0.3), path)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        bdpvi.load_release(path)


# --- floating point -------------------------------------------------------------------------------


def reachable(sample: float, mean: float, deviation: float) -> bool:
    """Whether some uniform of 52 bits takes this mean to this very sample: Mironov's attack."""
    near = stats.norm.cdf((sample - mean) / deviation) * 2.0**52
    raw = np.floor(near) + np.arange(-64, 65)
    normal = ndtri((raw + 0.5) * 2.0**-52)
    return bool((mean + deviation * normal == sample).any())


def test_low_bits_of_unrounded_samples_betray_the_mean_and_rounded_ones_do_not() -> None:
    mean, other, deviation = 0.7310585786300049, 0.7510585786300049, 0.5
    posterior = torch.distributions.Independent(
        torch.distributions.Normal(torch.tensor([mean]).double(), deviation), 1
    )
    bare = secure.sample(posterior, 200)[:, 0].tolist()
    assert all(reachable(y, float(posterior.mean), deviation) for y in bare)
    excluded = sum(not reachable(y, other, deviation) for y in bare)
    assert excluded > 100  # each of these samples rules D′ out, whatever ε says
    lattice = Lattice.beside(deviation)
    rounded = secure.sample(posterior, 200, lattice=lattice)[:, 0].tolist()
    assert all(y == lattice.step * round(y / lattice.step) for y in rounded)
    # Every point of the lattice within reach of one mean is within reach of the other, with nearly
    # the probability of an exact Gaussian.
    points = lattice.step * np.arange(-60, 140)
    for centre in (mean, other):
        assert ((points - centre) / deviation > -8).all()


def test_the_largest_raw_value_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda n, byte=byte: byte * n)
        draw = float(secure.standard_normal((1,))[0])
        assert math.isfinite(draw)
        assert abs(draw) < 8.3


@pytest.mark.parametrize(("bits", "step"), [(6, 0.5), (12, 0.125)])
def test_total_variation_by_counting_every_draw(bits: int, step: float) -> None:
    """A source of few bits, whose draws can all be counted, against exact cell probabilities."""
    mean, deviation = 0.3, 1.3
    normal = ndtri((np.arange(2**bits) + 0.5) * 2.0**-bits)
    points = np.round((mean + deviation * normal) / step)
    cells, counts = np.unique(points, return_counts=True)
    low, high = (stats.norm.cdf(((cells + s) * step - mean) / deviation) for s in (-0.5, 0.5))
    drawn = counts / 2**bits
    exact = high - low
    distance = 0.5 * (np.abs(drawn - exact).sum() + 1 - exact.sum())
    one = torch.ones(1, dtype=torch.float64)
    bound = total_variation(
        Lattice(step, 64.0), mean * one, deviation * one, dense=False, bits=bits
    )
    assert distance <= bound
    assert bound <= 60 * distance  # 1.5 · 2⁻ᵇ a boundary, where on average ¼ of that is moved


def by_hand(
    lattice: Lattice, mean: Tensor, deviation: Tensor, normals: int, bits: int = 52
) -> mpmath.mpf:
    """Return the bound that :func:`total_variation` states, each step in 50 digits."""
    with mpmath.workdps(50):
        g, half, total = mpmath.mpf(lattice.step), mpmath.mpf(2) ** -53, mpmath.mpf(0)
        for mu, sigma in zip(mean.tolist(), deviation.tolist(), strict=True):
            reach = mpmath.mpf("8.3") * mpmath.sqrt(normals) * sigma  # of the noise
            moved = half * 2 * min(abs(mu), lattice.box)
            total += 2 * moved / g + 2 * moved / (sigma * mpmath.sqrt(2 * mpmath.pi))
            size = half * (normals + 12) * (mpmath.mpf("1.4") + mpmath.sqrt(normals - 1))
            total += 2 * size * (sigma / g + mpmath.mpf("1.3"))
            total += mpmath.mpf(2) ** -bits * (mpmath.mpf("1.5") * (2 * reach / g + normals) + 1)
        return total


@pytest.mark.parametrize(
    ("bits", "dense", "box"), [(20, True, 1.0), (52, False, math.inf), (52, True, 1e6)]
)
def test_total_variation_by_hand(bits: int, dense: bool, box: float) -> None:
    lattice = Lattice(0.25, box)
    mean = torch.tensor([0.3, -500.0, 2e5], dtype=torch.float64)
    deviation = torch.tensor([0.5, 0.07, 2.0], dtype=torch.float64)
    bound = total_variation(lattice, mean, deviation, dense=dense, bits=bits)
    exact = by_hand(lattice, mean, deviation, 3 if dense else 1, bits)
    assert bound == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("guide", [MeanField, FullRank])
@pytest.mark.parametrize(("ratio", "shift"), [(1.0, 0.0), (1.5, 40.0), (1.01, 2e4)])
def test_rounding_error_by_hand_covers_every_neighbour_within_reach(
    guide: type[MeanField | FullRank], ratio: float, shift: float
) -> None:
    own = guide(bdpvi.BayesianLogisticRegression.unweighted(), grid=2.0**-7)
    mean = torch.tensor([3e4, -2.0, 0.0], dtype=torch.float64)
    deviation = torch.tensor([0.3, 0.01, 1.7], dtype=torch.float64)
    released: Distribution = MultivariateNormal(mean, deviation.square().diag())
    normals = 3
    if guide is MeanField:
        released, normals = Independent(Normal(mean, deviation), 1), 1
    draws, tau = 4, 6.25
    found = rounding_error(own, released, Reach(ratio, shift), draws, tau)
    lattice, root = own.lattice(tau), math.sqrt(tau)
    assert lattice.step == 2.0**-6  # the power of two at or below 2.5 · 2⁻⁷
    # The farthest neighbours: the widest, then the narrowest, as far away as the widest may be.
    away = mean.abs() + shift * ratio * deviation
    ends = [by_hand(lattice, away, root * f * deviation, normals) for f in (ratio, 1 / ratio)]
    assert found == pytest.approx(draws * float(sum(ends)), rel=1e-12)
    for f in torch.linspace(1 / ratio, ratio, 5).tolist():
        for side in (-1, 1):
            there = mean + side * shift * f * deviation
            assert draws * by_hand(lattice, there, root * f * deviation, normals) <= found


def test_the_reach_of_neighbours_is_that_of_the_farthest() -> None:
    """Of covariances that are wider and narrower, and of means."""
    r, b2 = (torch.tensor(one).double() for one in ([[1, 4], [1 / 16, 1]], [[1, 3], [0, 0]]))
    nobody = GaussianPairs(r[:0], b2[:0])
    assert Reach.of(GaussianPairs(r, b2), nobody) == (4.0, 2.0)
    assert Reach.of(GaussianPairs(1 / r, b2), nobody) == (4.0, 2.0)
    assert Reach.of(nobody) == (1.0, 0.0)


def test_rounding_is_paid_for_at_every_epsilon() -> None:
    assert rounding_delta(0.0, 3.0) == 0
    exact = 1e-8 * (1 + math.e)
    assert rounding_delta(1e-8, 0.2) == pytest.approx(exact)
    found = gaussian_guarantee(0.01, DELTA, rounding=1e-8)
    assert found is not None
    at = float(equal_covariance(torch.tensor([0.01]).double(), found.epsilon))
    assert at + (1 + math.exp(found.epsilon)) * 1e-8 <= DELTA
    assert found.epsilon > gaussian_epsilon(0.01, DELTA)
    assert gaussian_guarantee(0.01, DELTA, rounding=1e-5) is None
    event = GuideDraws(
        (Panel("remove", torch.arange(300), GaussianPairs(
            torch.ones(300, 1).double(), torch.linspace(0.001, 0.002, 300).double()[:, None])),),
        rounding=1e-7,
    )  # fmt: skip
    accountant = Accountant()
    accountant.step(event)
    without = Accountant()
    without.step(replace(event, rounding=0.0))
    assert bayes(accountant.cost(DELTA)).rounding == pytest.approx(1e-7 * (1 + math.e))
    assert accountant.get_epsilon(delta=DELTA) == pytest.approx(
        without.get_epsilon(delta=DELTA - 1e-7 * (1 + math.e)), rel=1e-9
    )
    assert accountant.get_delta(accountant.get_epsilon(delta=DELTA)) <= DELTA * (1 + 1e-9)
    with pytest.raises(ValueError, match="does not cover the rounding"):
        accountant.cost(1e-8)


def test_the_lattice_and_its_price_are_public(data: Dataset) -> None:
    one, two = bounded(data), bounded(logistic_data(500, 3, seed=3))
    for temperature in (0.01, 1.0, 300.0):
        assert one.guide.lattice(temperature) == two.guide.lattice(temperature)
        prices = {
            rounding_error(f.guide, f.released, Reach(1.0, 0.0), 5, temperature) for f in (one, two)
        }
        assert len(prices) == 1
        assert max(prices) < 1e-9


# --- experiments ----------------------------------------------------------------------------------


def test_seeded_samples_are_no_release(fit: bdpvi.Fit, tmp_path: Path) -> None:
    drawn = bdpvi.release(fit, temperature=3.0, generator=torch.Generator().manual_seed(0))
    assert drawn.receipt.experiment
    assert "EXPERIMENT" in str(drawn)
    with pytest.raises(ValueError, match="experiment"):
        bdpvi.save_release(drawn, tmp_path / "release.json")
    assert list(tmp_path.iterdir()) == []
    # The same noise at two temperatures would give the mean away.
    with pytest.raises(ValueError, match="generator is in a state"):
        bdpvi.release(fit, temperature=12.0, generator=torch.Generator().manual_seed(0))
    assert len(fit.ledger.charges()) == 1


@pytest.mark.parametrize("records", [0, 300])
@pytest.mark.parametrize(
    "model",
    [
        BayesianLogisticRegression(),
        BayesianLogisticRegression(clip=0.5, prior_scale=0.3, intercept=True),
    ],
)
def test_a_planned_temperature_follows_from_the_width_and_not_from_panels(
    model: BayesianLogisticRegression, records: int
) -> None:
    """Panels of a guide with public noise have one column, whatever the width."""
    data = logistic_data(300, 5).select(torch.arange(records))
    fit = bdpvi.fit(model, FullRank(model, noise_scale=1.0), data, progress=False)
    assert fit.panels[0].pairs.r.shape[1] == 1
    given: dict[str, Any] = {"rows": 400.0, "epsilon": 0.2, "delta": 1e-5}
    found = bdpvi.BayesianDP(rows=400).temperature(fit, 1, 0.2, 1e-5)
    assert found == planned_temperature(model, 6, **given) > planned_temperature(model, 1, **given)
