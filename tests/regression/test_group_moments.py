"""Linear mixed models from noisy moments: sensitivity, and the posterior against dense algebra."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import bdpvi
from bdpvi import BayesianLinearRegression, Dataset
from bdpvi.models.contract import Prior
from bdpvi.models.mixed import MixedRegression
from bdpvi.noise.keys import Key
from bdpvi.privacy.events import SampledGaussian
from bdpvi.regression import NoisyGroups
from bdpvi.regression.group_moments import MomentPlan
from bdpvi.regression.group_posterior import (
    GroupMoments,
    _given,
    _variance,
    mixed_posterior,
    shrunk,
)

GROUPS, LARGEST = 12, 6.0
PLAN = MomentPlan(
    event=SampledGaussian(noise_multiplier=2.0), columns=3, groups=GROUPS, radius=2.2,
    largest=LARGEST,
)  # fmt: skip
W = torch.tensor([0.5, -0.3, 1.0], dtype=torch.float64)
PRIOR = Prior(torch.zeros(3).double(), torch.tensor(3.0).double())
SPREAD = Prior(torch.tensor(-0.3).double(), torch.tensor(1.0).double())


def rows(n: int, seed: int = 0, spread: float = 0.8) -> tuple[Tensor, Tensor, Tensor]:
    """Return features with 1, the indicators of groups, and targets."""
    random = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randn(n, 2, generator=random), torch.ones(n, 1)], 1).double()
    group = torch.randint(GROUPS, (n,), generator=random)
    u = spread * torch.randn(GROUPS, generator=random).double()
    y = x @ W + u[group] + torch.randn(n, generator=random).double()
    return x, torch.nn.functional.one_hot(group, GROUPS) > 0, y


def test_no_row_moves_the_sums_by_more_than_the_clip() -> None:
    """Rows of any size, one at a time; the worst are near the bound, so that it is no larger."""
    x, there, y = rows(4000)
    x[:, :2] *= torch.logspace(-3, 6, 4000, dtype=torch.float64)[:, None]
    y *= torch.logspace(-2, 6, 4000, dtype=torch.float64).flip(0)
    there[::7] = False
    lengths = [float(PLAN.sums(x[[at]], there[[at]], y[[at]]).norm()) for at in range(0, 4000, 3)]
    assert max(lengths) <= 2 * PLAN.radius**2
    assert max(lengths) > 0.95 * 2 * PLAN.radius**2


def test_moments_are_those_of_the_rows_and_noise_is_as_it_says() -> None:
    """Without noise against plain sums; with it, each in the standard deviation it names."""
    x, there, y = rows(300)
    w = (PLAN.radius**2 / x.square().sum(1)).clamp(max=1)
    cut, g = y.clamp(-LARGEST, LARGEST), there.double()
    flat = PLAN.sums(x, there, y)
    assert len(flat) == PLAN.size
    wanted = {
        "features": x.T @ (w[:, None] * x),
        "sums": g.T @ (w[:, None] * x),
        "products": x.T @ (w * cut),
        "by_group": g.T @ (w * cut),
        "square": (w * cut * cut).sum(),
    }
    exact = PLAN.moments(flat, 1.0)
    for name, value in wanted.items():
        torch.testing.assert_close(torch.as_tensor(getattr(exact, name)).double(), value)
    torch.manual_seed(0)
    noisy = [PLAN.moments(flat + 3.0 * torch.randn(len(flat)).double(), 3.0) for _ in range(600)]
    one = noisy[0]

    def spread(name: str, part: Any = ()) -> float:
        values = [torch.as_tensor(getattr(each, name)).double() for each in noisy]
        return float(torch.stack([v[part] if part else v for v in values]).std(0).mean())

    assert spread("features", (0, 0)) == pytest.approx(one.feature_noise, rel=0.1)
    assert spread("features", (0, 1)) == pytest.approx(one.feature_noise / math.sqrt(2), rel=0.1)
    assert spread("sums", (slice(None), 0)) == pytest.approx(one.sum_noise, rel=0.03)
    assert spread("sums", (slice(None), 2)) == pytest.approx(one.count_noise, rel=0.03)
    assert spread("products") == pytest.approx(one.product_noise, rel=0.06)
    assert spread("by_group") == pytest.approx(one.group_noise, rel=0.03)
    assert spread("square") == pytest.approx(one.square_noise, rel=0.1)


def test_the_noise_is_for_the_longest_row() -> None:
    """Its deviation in each coordinate is z times 2R², from fresh keys: 1,200 normals."""
    zeros = torch.zeros(PLAN.size, dtype=torch.float64)
    products = torch.cat([PLAN.released(zeros, Key.fresh()).products for _ in range(400)])
    unit = PLAN.largest / PLAN.part / math.sqrt(2)
    wanted = 2.0 * 2 * PLAN.radius**2 * unit
    assert float(products.std()) == pytest.approx(wanted, rel=4 / math.sqrt(2 * len(products)))
    assert PLAN.released(zeros, Key.fresh()).product_noise == pytest.approx(wanted, rel=1e-3)


def moments(n: int, seed: int = 0, noise: float = 1e-6, spread: float = 0.8) -> GroupMoments:
    x, there, y = rows(n, seed, spread)
    flat = PLAN.sums(x, there, y)
    torch.manual_seed(seed)
    return PLAN.moments(flat + noise * torch.randn(len(flat)).double(), noise)


def test_given_the_variances_it_is_dense_normal_algebra() -> None:
    """Every mean, covariance and the evidence, from whole matrices."""
    made = moments(600, noise=4.0)
    known, w, tau2, sigma2 = shrunk(made), W, 0.5, 1.3
    found = _given(made, known, PRIOR, w, tau2, sigma2)
    s, left, a = known.sums, known.variance, made.features
    n, eye = s[:, -1], torch.eye(3).double()
    m = torch.cat([torch.cat([a, s.T], 1), torch.cat([s, n.diag()], 1)])
    fixed = made.product_noise**2 * eye + GROUPS * tau2 * left.diag()
    fixed = fixed + made.feature_noise**2 / 2 * (w @ w * eye + torch.outer(w, w))
    own = made.group_noise**2 + float(left @ w.square()) + float(left[-1]) * tau2
    v = sigma2 * m + torch.block_diag(fixed, own * torch.eye(GROUPS).double())
    t = torch.cat([made.products, made.by_group])
    prior = torch.cat([torch.full((3,), 9.0), torch.full((GROUPS,), tau2)]).double()
    cov = torch.linalg.inv(m.T @ torch.linalg.solve(v, m) + (1 / prior).diag())
    mean = cov @ m.T @ torch.linalg.solve(v, t)
    torch.testing.assert_close(torch.cat([found.w, found.u]), mean)
    torch.testing.assert_close(found.covariance, cov)
    torch.testing.assert_close(found.variances, cov.diagonal())
    whole = torch.distributions.MultivariateNormal(
        torch.zeros(len(t)).double(), v + m @ prior.diag() @ m.T
    )
    other = _given(made, known, PRIOR, w, 2 * tau2, sigma2)
    more = torch.cat([prior[:3], 2 * prior[3:]])
    extra = (2 - 1) * tau2 * (GROUPS * left.diag())
    own2 = float(left[-1]) * tau2
    v2 = v + torch.block_diag(extra, own2 * torch.eye(GROUPS).double())
    second = torch.distributions.MultivariateNormal(
        torch.zeros(len(t)).double(), v2 + m @ more.diag() @ m.T
    )
    wanted = float(second.log_prob(t) - whole.log_prob(t))
    assert other.evidence - found.evidence == pytest.approx(wanted, rel=1e-6)


def test_the_variance_of_errors_is_that_of_dense_algebra() -> None:
    """For each group from the whole covariance of effect, error and noise, given their sum."""
    made = moments(600, noise=6.0)
    known, tau2, sigma2 = shrunk(made), 0.5, 1.3
    found = _given(made, known, PRIOR, W, tau2, sigma2)
    w, left = found.w, known.variance
    noise = made.group_noise**2 + float(left @ w.square()) + float(left[-1]) * tau2
    whole = made.square - 2 * float(w @ made.products) + float(w @ made.features @ w)
    for t, sums in zip(made.by_group, known.sums, strict=True):
        n, rest = float(sums[-1]), float(t - sums @ w)
        prior = torch.tensor([tau2, sigma2 * n, noise]).double().diag()
        a = torch.tensor([n, 1.0, 1.0]).double()
        gain = prior @ a / (a @ prior @ a)
        second = prior - torch.outer(gain, prior @ a) + torch.outer(gain, gain) * rest**2
        whole -= float(n * second[0, 0] + 2 * second[0, 1])
    assert _variance(made, known, found, tau2, sigma2) == pytest.approx(whole / made.rows, rel=1e-6)


def test_without_noise_it_is_the_mixed_model_of_the_rows() -> None:
    """τ against the marginal likelihood of all rows, integrated by scipy; w against its own."""
    x, there, y = rows(400, seed=3)
    x[:, :2] = x[:, :2].clamp(-1, 1)  # no row has a weight
    flat = PLAN.sums(x, there, y)
    found = mixed_posterior(PLAN.moments(flat, 1e-7), PRIOR, SPREAD, LARGEST)
    sigma2, z = math.exp(2 * found.log_scale[0]), there.double()

    def log_density(log: float) -> float:
        cov = sigma2 * torch.eye(400).double() + math.exp(2 * log) * z @ z.T + 9.0 * x @ x.T
        law = torch.distributions.MultivariateNormal(torch.zeros(400).double(), cov)
        return float(law.log_prob(y)) + float(stats.norm.logpdf(log, -0.3, 1.0))

    grid = np.linspace(-2.5, 1.5, 81)
    logs = np.array([log_density(one) for one in grid])
    share = np.exp(logs - logs.max())
    whole = integrate.simpson(share, x=grid)
    mean = integrate.simpson(share * grid, x=grid) / whole
    sd = math.sqrt(integrate.simpson(share * (grid - mean) ** 2, x=grid) / whole)
    assert found.log_spread == pytest.approx((mean, sd), rel=0.03, abs=0.01)
    tau2 = math.exp(2 * mean)
    cov = sigma2 * torch.eye(400).double() + tau2 * z @ z.T
    inner = x.T @ torch.linalg.solve(cov, x) + torch.eye(3).double() / 9
    w = torch.linalg.solve(inner, x.T @ torch.linalg.solve(cov, y))
    torch.testing.assert_close(found.mean[:3], w, rtol=0.01, atol=0.01)
    sds = torch.linalg.inv(inner).diagonal().sqrt()
    torch.testing.assert_close(found.variances[:3].sqrt(), sds, rtol=0.05, atol=0)
    u = tau2 * z.T @ torch.linalg.solve(cov, y - x @ w)
    torch.testing.assert_close(found.mean[3:], u, rtol=0.05, atol=0.02)
    assert math.exp(found.log_scale[0]) == pytest.approx(1.0, abs=0.1)


def test_intervals_hold_with_noise() -> None:
    """60 tables: at least 92 % of fixed effects, effects of groups and τ."""
    hits: list[Tensor] = []
    for seed in range(60):
        made = mixed_posterior(moments(1500, seed, noise=30.0), PRIOR, SPREAD, LARGEST)
        away = (made.mean[:3] - W).abs() < 1.96 * made.variances[:3].sqrt()
        tau = abs(made.log_spread[0] - math.log(0.8)) < 1.96 * made.log_spread[1]
        hits.append(torch.cat([away, torch.tensor([tau])]))
    share = torch.stack(hits).double().mean(0)
    assert share.min() > 0.86
    assert share.mean() > 0.92


def test_noise_beyond_the_rows_leaves_the_prior() -> None:
    made = mixed_posterior(moments(100, noise=1e4), PRIOR, SPREAD, LARGEST)
    assert made.log_spread == pytest.approx((-0.3, 1.0), abs=0.3)
    assert made.variances.isfinite().all()
    assert (made.variances[:3] > 0.5 * 9).all()


def test_a_release_says_what_is_measured() -> None:
    x, there, y = rows(20_000)
    data = Dataset(torch.cat([x[:, :1], there.double(), x[:, 1:2]], 1), y + 100)
    of = BayesianLinearRegression(largest=LARGEST, middle=100.0, prior_scale=15.0)
    model = MixedRegression(of=of, column="clinic", groups=tuple(range(1, GROUPS + 1)))
    release = bdpvi.fit_private(model, data, epsilon=3.0, route=NoisyGroups(draws=200))
    assert release.guide is not None
    assert all(release.guide.measured)
    w = release.latents["w"].mean(0)
    assert w[[0, -2, -1]].tolist() == pytest.approx([0.5, -0.3, 101.0], abs=0.8)
    assert release.receipt.worst_case is not None
    assert 0.99 * 3 < release.cost.worst_case.epsilon <= 3  # type: ignore[union-attr]
    summary = release.summary()
    assert summary.spread is not None
    assert summary.spread[0] == "clinic"
    assert summary.spread[4]
    assert "sd of the effects of 'clinic': " in str(summary)


@pytest.mark.parametrize(
    ("groups", "message"),
    [((), "is for a MixedRegression with groups"), ((0, 1), "τ needs 3 at least")],
)
def test_too_few_groups_are_refused(groups: tuple[int, ...], message: str) -> None:
    model = MixedRegression(of=BayesianLinearRegression(largest=5.0), groups=groups)
    data = Dataset(torch.zeros(50, 4), torch.zeros(50))
    with pytest.raises(ValueError, match=message):
        bdpvi.fit_private(model, data, epsilon=1.0, route=NoisyGroups())
    assert not data.ledger.entries()
