"""Regressions with a likelihood of one's own: what is refused, named and covered."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

import bdpvi
from bdpvi import Dataset, Ledger, guides
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.models.family import weighing
from bdpvi.models.linear import LogisticErrors
from bdpvi.models.losses import LossBound
from bdpvi.models.own import OwnRegression
from bdpvi.privacy.assumptions import Assumption

TRIALS = 5


def binomial(a: Tensor) -> Any:
    return dist.Binomial(TRIALS, logits=a)


def wrong_by(**less: float) -> dict[str, Any]:
    """Return the arguments of a binomial regression, with bounds times these factors."""
    true = {"score": 5.0, "curvature": 1.25, "concordance": 1.0}
    bound = LossBound(**{name: value * less.get(name, 1.0) for name, value in true.items()})
    return {"family": binomial, "targets": (0, TRIALS), "whole": True, "bound": bound}


def made(**changed: Any) -> OwnRegression:
    return OwnRegression(**(wrong_by() | changed))


def table(rows: int, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=g, dtype=torch.float64)
    p = (x @ torch.tensor([1.0, -0.5], dtype=torch.float64)).sigmoid()
    y = (torch.rand(rows, TRIALS, generator=g, dtype=torch.float64) < p[:, None]).sum(1)
    return Dataset(x, y.double())


@pytest.mark.parametrize("name", ["score", "curvature", "concordance"])
def test_a_bound_one_percent_too_small_is_refused_by_kind(name: str) -> None:
    made()
    with pytest.raises(ValueError, match=f"at a random public point is not within {name}=") as said:
        OwnRegression(**wrong_by(**{name: 0.99}))
    kind = {"concordance": "derivative of order 3"}.get(name, name)
    assert str(said.value).startswith(f"bound: the {kind} at a random public point")


def test_errors_of_a_location_are_tested_near_their_targets() -> None:
    """The library's own errors of the logistic law, around 140."""
    exact = LogisticErrors(4.0).bound
    settings: dict[str, Any] = {"targets": (80.0, 200.0), "middle": 140.0}
    settings["family"] = lambda a: dist.Logistic(a, 4.0)
    OwnRegression(**settings, bound=exact)
    for name in ("score", "curvature", "concordance"):
        less = {**vars(exact), name: 0.99 * getattr(exact, name)}
        with pytest.raises(ValueError, match="bound: "):
            OwnRegression(**settings, bound=LossBound(**less))


def test_a_loss_that_is_not_convex_or_has_no_bound_is_refused() -> None:
    wide = LossBound(100.0, 100.0, 100.0)
    with pytest.raises(ValueError, match="bound: a negative curvature"):
        made(family=lambda a: dist.StudentT(3.0, a, 1.0), whole=False, bound=wide)
    with pytest.raises(ValueError, match=r"bound: the (score|curvature)"):
        made(family=lambda a: dist.Poisson(a.clamp(max=50.0).exp()), bound=wide)


class OfPredictor(dist.TorchDistribution):  # type: ignore[misc]
    """A distribution of a real target for a predictor."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    support = torch.distributions.constraints.real

    def __init__(self, a: Tensor) -> None:
        self.a = a
        super().__init__(a.shape, validate_args=False)


class Huber(OfPredictor):
    """Its curvature has jumps, and each derivative is within every bound where it exists."""

    def log_prob(self, value: Tensor) -> Tensor:
        r = (self.a - value).abs()
        return -torch.where(r < 1, r.square() / 2, r - 0.5)


def hidden(a: Tensor) -> Any:
    """Most of the predictor is hidden from automatic differentiation."""
    return dist.Logistic(0.1 * a + 0.9 * a.detach(), 1.0)


@pytest.mark.parametrize(
    "family",
    [
        Huber,
        hidden,
        lambda a: dist.Normal(a.clamp(-3, 3), 1.0),
        lambda a: dist.Logistic(a + 1e-3 * a.relu(), 1.0),
    ],
)
def test_jumps_are_found_between_points(family: Any) -> None:
    with pytest.raises(ValueError, match=r"bound: the change of .* between two random public"):
        made(family=family, targets=(-3, 3), whole=False, bound=LossBound(9.0, 9.0, 3.0))


class ByHand(dist.TorchDistribution):  # type: ignore[misc]
    """A yes or no, by the logarithm of the share of yes."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    support = torch.distributions.constraints.real

    def __init__(self, a: Tensor, share: Callable[[Tensor], Tensor]) -> None:
        self.a, self.share = a, share
        super().__init__(a.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.where(value == 1, self.share(self.a), self.share(-self.a))


def test_a_family_that_is_none_is_refused() -> None:
    def mixed(a: Tensor) -> Any:
        return dist.Binomial(TRIALS, logits=a - 0.1 * a.mean())

    with pytest.raises(ValueError, match="changes with other predictors"):
        made(family=mixed)
    made(family=lambda a: dist.Binomial(TRIALS, logits=a - 0.1 * 3.7))
    one = {"targets": (0, 1), "bound": LossBound(1.0, 0.25, 1.0)}
    with pytest.raises(ValueError, match="is not finite"):
        made(family=partial(ByHand, share=lambda a: (a.exp() / (1 + a.exp())).log()), **one)
    made(family=partial(ByHand, share=logsigmoid), **one)
    with pytest.raises(ValueError, match="family raised"):
        made(family=lambda a: dist.Binomial(TRIALS, probs=a))
    with pytest.raises(ValueError, match="family raised"):
        made(family=lambda a: dist.Binomial(TRIALS, logits=a).to_event(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"targets": (5, 0)}, "targets must be a smaller and a larger number"),
        ({"targets": (0, 4.5)}, "targets must be whole numbers"),
        ({"bound": LossBound(5.0, 1.25, 0.0)}, "bound.concordance must be"),
    ],
)
def test_arguments_are_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changed)


def test_derivatives_are_those_of_the_closed_form() -> None:
    loss = made().loss
    assert loss is not None
    a = torch.linspace(-6, 6, 41, dtype=torch.float64)
    for y in (0.0, 2.0, 5.0):
        p = a.sigmoid()
        v = p * (1 - p)
        exact = [TRIALS * p - y, TRIALS * v, TRIALS * v * (1 - 2 * p), TRIALS * v * (1 - 6 * v)]
        found = loss.slopes(a, torch.tensor(y).double(), 4)
        for one, other in zip(found, exact, strict=True):
            assert torch.allclose(one, other, atol=1e-12)
        value = -torch.from_numpy(binom.logpmf(y, TRIALS, p.numpy()))
        assert torch.allclose(loss.value(a, torch.tensor(y).double()), value, atol=1e-12)


def mode(x: Tensor, y: Tensor, model: OwnRegression) -> tuple[Tensor, Tensor]:
    """Return the mode and the Hessian by formulas of a binomial table, without the library's."""
    z = torch.cat([x.clamp(-2, 2), torch.full((len(x), 1), 2.0).double()], 1)
    c, b = 0.5 * (2 + 4) ** 0.5, (2 * 4 + 4) ** 0.5
    weight, ridge = (c / z.norm(dim=1)).clamp(max=1), 4 * 1.0 * 5.0 * c * b
    w = torch.zeros(3, dtype=torch.float64)
    for _ in range(30):
        p = (z @ w).sigmoid()
        gradient = z.T @ (weight * (TRIALS * p - y)) + ridge * w
        hessian = (z * (weight * TRIALS * p * (1 - p))[:, None]).T @ z + ridge * torch.eye(3)
        w = w - torch.linalg.solve(hessian, gradient)
    return w, hessian


def test_fits_without_each_record_are_within_the_certificate() -> None:
    """All leave-one-out fits again, by hand: no record costs more than any conceivable one may,
    and their mean δ at the certified ε is within δ."""
    data, model, delta = table(60), made(), 1e-2
    fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
    whole = mode(data.x, data.y, model)
    assert torch.allclose(fit.parameters["loc"], whole[0], atol=1e-9)
    factor, pairs = torch.linalg.cholesky(torch.linalg.inv(whole[1])), []
    for i in range(60):
        keep = torch.arange(60) != i
        w, hessian = mode(data.x[keep], data.y[keep], model)
        r, axes = torch.linalg.eigh(factor.T @ hessian @ factor)
        shift = torch.linalg.solve(factor, w - whole[0])
        pairs.append((r, r * (axes.T @ shift).square()))
    exact = GaussianPairs(*(torch.stack(one) for one in zip(*pairs, strict=True)))
    influence = fit.panels[0].influence
    assert influence is not None
    assert influence.stated
    assert float((exact.b2 / exact.r).sum(1).max().sqrt()) < influence.shift
    found = bdpvi.cost(fit, delta=delta, planned=bdpvi.privacy.Charge(1, 1.0)).bayesian
    assert found is not None
    assert found.certified
    for one in (exact, exact.reverse()):
        assert float(one.hockey_stick(found.epsilon).mean()) < delta
        for epsilon in (0.1, 1.0):
            most = max(influence.delta(epsilon, way) for way in ("D‖D′", "D′‖D"))
            assert float(one.hockey_stick(epsilon).max()) < most


@pytest.mark.whole
@pytest.mark.usefixtures("quick")
def test_every_statement_names_what_is_stated(tmp_path: Path) -> None:
    model, data = made(), table(400)
    ledger = Ledger.at(tmp_path / "ledger.jsonl")
    fit = bdpvi.fit(model, guides.Laplace(model), data, ledger=ledger, progress=False)
    release = bdpvi.release(fit, delta=2e-3)
    assert "stated by the analyst, not proved" in release.receipt.meaning
    assert "with bounds that the analyst states" in str(release.receipt)
    assert release.cost.bayesian is not None
    assert release.cost.bayesian.certified
    every = [release.receipt.bayesian, release.cost.worst_case, release.cost.bayesian]
    every += [Ledger(tmp_path / "ledger.jsonl").worst_case(2e-3)]
    every += [*bdpvi.cost(fit, delta=2e-3, for_groups_of=0.5).groups]
    for one in every:
        assert one is not None
        assert Assumption.STATED_BOUNDS in one.assumptions
    bdpvi.save_release(release, tmp_path / "release.json")
    again = bdpvi.load_release(tmp_path / "release.json", model)
    assert again.receipt == release.receipt
    bdpvi.save_fit(fit, tmp_path / "fit")
    loaded = bdpvi.load_fit(tmp_path / "fit", model, guides.Laplace(model))
    assert loaded.panels[0].influence == fit.panels[0].influence
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    (charged,) = (one for one in map(json.loads, lines) if "charge" in str(one)[:20])
    assert "stated" in str(charged)


def test_a_target_beyond_the_bounds_is_clipped_and_an_odd_one_left_out() -> None:
    model, data = made(), table(80)
    y = data.y.clone()
    y[0], y[1] = 99.0, -7.0
    clipped = data.y.clone()
    clipped[0], clipped[1] = 5.0, 0.0
    one, other = (
        bdpvi.fit(model, guides.Laplace(model), Dataset(data.x, of), progress=False)
        for of in (y, clipped)
    )
    assert torch.equal(one.parameters["loc"], other.parameters["loc"])
    y[2] = 2.5
    with pytest.warns(UserWarning, match="1 record"):
        fit = bdpvi.fit(model, guides.Laplace(model), Dataset(data.x, y), progress=False)
    assert fit.records == 79


def test_a_smooth_quantile_is_one_of_its_own_losses() -> None:
    """Asymmetric, so that all signs are tested: τr + softplus(−r), r = (y − a)/h."""

    class Quantile(OfPredictor):
        def log_prob(self, value: Tensor) -> Tensor:
            r = value - self.a
            return -(0.9 * r + softplus(-r))

    good = LossBound(score=0.9, curvature=0.25, concordance=1.0)
    model = OwnRegression(family=Quantile, targets=(-3.0, 3.0), bound=good)
    assert weighing(model) is model
    with pytest.raises(ValueError, match="bound: the score"):
        OwnRegression(family=Quantile, targets=(-3.0, 3.0), bound=LossBound(0.89, 0.25, 1.0))
