"""Noisy scores: bounds on what a record adds, the noise, and posteriors against the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from intervals import log_density
from scipy import integrate, stats
from torch import Tensor

from bdpvi.datasets.records import Held
from bdpvi.models.linear import LinearScores
from bdpvi.models.logistic import FREE, LogisticScores, largest_logistic
from bdpvi.models.poisson import MOST_COUNT, PoissonScores, cut_poisson, free_poisson
from bdpvi.models.scores import ROBUST, Parts, ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression import score_release as noisy_scores
from bdpvi.regression.score_posterior import (
    NormalPrior,
    Round,
    closed_form,
    combined,
    sampling_variance,
)
from bdpvi.regression.score_release import Measured, ScorePlan, measure
from bdpvi.regression.score_rounds import Joined, noisy, summed
from bdpvi.releases.exact_sums import SLACK

FAMILIES: dict[str, ScoreParts] = {
    "logistic": LogisticScores(),
    "poisson": PoissonScores(10.0),
    "one": PoissonScores(1.0),
    "linear": LinearScores(5.0),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(x: Tensor, parts: Parts) -> Tensor:
    """Return the length of each record's part, entry by entry."""
    matrix = parts.ratio * parts.curvature[:, None, None] * x[:, :, None] * x[:, None, :]
    whole = [parts.score[:, None] * x, matrix.flatten(1)]
    if parts.square is not None:
        whole.append(parts.square_ratio * parts.square[:, None])
    if parts.middle is not None:
        middle = parts.middle_ratio * parts.middle[:, None, None] * x[:, :, None] * x[:, None, :]
        whole.append(middle.flatten(1))
    return torch.linalg.vector_norm(torch.cat(whole, 1), dim=1)  # type: ignore[no-any-return]


def adversarial(k: int, records: int, seed: int) -> Tensor:
    """Return records of all lengths, many of them near √k."""
    g = generator(seed)
    x = torch.randn(records, k, generator=g, dtype=torch.float64)
    size = torch.where(
        torch.rand(records, generator=g) < 0.5,
        torch.rand(records, generator=g) * 3,
        10 ** (6 * torch.rand(records, generator=g) - 3),
    )
    directions: Tensor = x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return directions * math.sqrt(k) * size[:, None].double()


@pytest.mark.parametrize("name", FAMILIES)
def test_no_record_adds_more_than_the_bound_and_some_add_all_of_it(name: str) -> None:
    family, k, largest, first = FAMILIES[name], 3, 0.0, 0.0
    radius = math.sqrt(k)
    for seed in range(20):
        x, g = adversarial(k, 5_000, seed), generator(seed)
        if name == "logistic":
            y = (torch.rand(len(x), generator=g) < 0.5).double()
        else:
            y = torch.randint(-12, 13, (len(x),), generator=g).double()
            y = y if name == "linear" else y.abs()
        point = torch.randn(k, generator=g, dtype=torch.float64) * 10.0 ** (seed % 4 - 2)
        usual = family.parts(x, y, radius, point, 1.3)
        for parts, round_ in (
            (family.first(x, y, radius), 0),
            (usual, 1),
            (usual.robust(x, family.longest(radius, 1.3, 0.3)), 1),
        ):
            assert torch.allclose(parts.lengths(x), lengths(x, parts))
            share = float((lengths(x, parts) / parts.bound).max())
            assert share <= 1
            first, largest = (
                (max(first, share), largest)
                if not round_
                else (
                    first,
                    max(largest, share),
                )
            )
    assert first > 0.97
    assert largest > (0.9 if name == "one" else 0.97)


def test_the_matrix_is_free_up_to_where_it_is_said_to_be() -> None:
    p = np.linspace(0, 1, 200_001)

    def brute(a: float) -> float:
        return float(((1 - p) * np.sqrt(1 + (a * p) ** 2)).max())

    for a in (0.5, 2.0, 3.0, FREE, 3.5, 5.0, 40.0):
        found = float(largest_logistic(torch.tensor(a, dtype=torch.float64)))
        assert found == pytest.approx(brute(a), rel=1e-8)
    assert brute(FREE) == pytest.approx(1, abs=1e-9)
    assert brute(1.01 * FREE) > 1.001


@pytest.mark.parametrize("b", [1.0, 4.0, 10.0])
def test_counts_that_are_cut_have_these_means_and_a_free_matrix(b: float) -> None:
    mus = torch.logspace(-3, 2, 400).double()
    mean, slope = cut_poisson(mus, b)
    y = np.arange(1000)
    brute = np.array([(np.minimum(y, b) * stats.poisson.pmf(y, mu)).sum() for mu in mus.tolist()])
    assert np.allclose(mean.numpy(), brute, rtol=1e-9)
    up, _ = cut_poisson(mus * math.exp(1e-5), b)
    down, _ = cut_poisson(mus * math.exp(-1e-5), b)
    assert torch.allclose(slope, (up - down) / 2e-5, rtol=1e-5, atol=1e-9)
    square = np.array([(np.minimum(y, b) ** 2 * stats.poisson.pmf(y, mu)).sum() for mu in mus])
    assert (square - brute**2 <= slope.numpy() + 1e-9).all()  # Poincaré
    far = torch.maximum(mean, b - mean)
    ratio = ((b**2 - far**2) / slope**2)[slope > 1e-3].min()
    assert free_poisson(b) <= math.sqrt(float(ratio)) <= 1.02 * free_poisson(b)


@pytest.mark.parametrize(("b", "share"), [(1e3, 0.98), (1e5, 0.8), (MOST_COUNT, 0.4)])
def test_the_matrix_of_large_counts_is_free_too(b: float, share: float) -> None:
    mus = torch.linspace(b - 12 * math.sqrt(b), b + 12 * math.sqrt(b), 20_001).double()
    mean, slope = cut_poisson(mus, b)
    ratio = (b**2 - torch.maximum(mean, b - mean) ** 2) / slope**2
    root = math.sqrt(float(ratio[slope > 1e-3 * b].min()))
    assert share * root <= free_poisson(float(b)) <= root


def of_parts(parts: Parts, x: Tensor, multiplier: float, key: Key) -> Round:
    """Return the round of these contributions."""
    return noisy(summed(parts, x), parts, x[0], multiplier, key)


def test_a_round_is_the_sums_with_the_noise_it_names() -> None:
    x, g = adversarial(3, 200, 0).clamp(-3, 3), generator(1)
    y = (torch.rand(200, generator=g) < 0.5).double()
    parts, found = LogisticScores().first(x, y, math.sqrt(3)), []
    for seed in range(3000):
        found.append(of_parts(parts, x, 2.0, Key.of_seed(seed)))
    one = found[0]
    assert one.score_noise == pytest.approx(2 * parts.bound * (1 + SLACK), rel=1e-6)
    for values, truth, noise in (
        (torch.stack([r.score for r in found]), x.T @ parts.score, one.score_noise),
        (
            torch.stack([r.curvature for r in found]),
            (parts.curvature[:, None] * x).T @ x,
            one.curvature_noise * (0.5 + torch.eye(3, dtype=torch.float64) / 2).sqrt(),
        ),
    ):
        error = (values.mean(0) - truth) / noise * math.sqrt(3000)
        assert float(error.abs().max()) < 4.5
        assert torch.allclose(values.std(0), torch.ones_like(truth) * noise, rtol=0.06)
    assert all(torch.equal(r.curvature, r.curvature.T) for r in found[:5])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_middle_of_the_sandwich_is_the_sum_with_the_noise_it_names(name: str) -> None:
    x, g, family = adversarial(2, 60, 0).clamp(-3, 3), generator(1), FAMILIES[name]
    y = torch.randint(0, 2, (60,), generator=g).double() * (1 if name == "logistic" else 4)
    usual = family.parts(x, y, 2.0, x[0] / 9, 1.3)
    longest = family.longest(2.0, 1.3, 0.3)
    parts, found = usual.robust(x, longest), []
    for seed in range(2000):
        found.append(of_parts(parts, x, 2.0, Key.of_seed(seed)))
    cut = [
        min(abs(float(s)), longest / float(r.norm())) for s, r in zip(usual.score, x, strict=True)
    ]
    truth = torch.stack([s * s * torch.outer(r, r) for s, r in zip(cut, x, strict=True)]).sum(0)
    assert all(one.middle is not None for one in found)
    middles = torch.stack([one.middle for one in found if one.middle is not None])
    size = torch.tensor([[1.0, 0.5**0.5], [0.5**0.5, 1.0]]).double() * found[0].middle_noise
    assert float(((middles.mean(0) - truth) / size).abs().max()) < 4.5 / math.sqrt(2000)
    assert torch.allclose(middles.std(0), size, rtol=0.07)
    assert found[0].middle_noise == pytest.approx(
        2 * ROBUST * usual.bound * 2 * longest**2 / usual.bound, rel=1e-4
    )


def test_the_sampling_variance_is_the_middle_where_it_exceeds_the_model_by_more_than_noise() -> (
    None
):
    a = torch.tensor([[50.0, 8.0], [8.0, 30.0]], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(a)
    more = torch.tensor([[40.0, 15.0], [15.0, 10.0]], dtype=torch.float64)
    assert torch.allclose(sampling_variance(a, vectors, a + more, 0.0), a + more)
    assert torch.allclose(sampling_variance(a, vectors, a / 2, 0.0), a)
    assert torch.allclose(sampling_variance(a, vectors, a + more, 1e3), a)
    assert torch.allclose(sampling_variance(a, vectors[:, :0], a + more, 0.0), a)
    g, sizes = generator(0), []
    for _ in range(4000):  # the expected square of noise alone, in units of a
        e = 3 * torch.randn(2, 2, generator=g, dtype=torch.float64)
        white = (vectors / values.sqrt()).T @ ((e + e.T) / 2) @ (vectors / values.sqrt())
        sizes.append(float(white.square().sum()))
    noise = float(np.mean(sizes))
    made = sampling_variance(a, vectors, 2 * a, 3.0)  # of an excess of 1, whose square is 2
    assert torch.allclose(made, a * (2 - noise / 2), rtol=0.01)


def test_a_wrong_model_has_intervals_that_cover() -> None:
    """Counts of variance μ + μ²/2, none near the bound: 300 intervals."""
    inside: list[Tensor] = []
    naive: list[Tensor] = []
    for seed in range(100):
        g = generator(seed)
        x = torch.randn(8000, 3, generator=g, dtype=torch.float64)
        x[:, -1] = 1
        beta = torch.tensor([0.4, -0.2, 0.2], dtype=torch.float64)
        torch.manual_seed(seed)
        shape = torch.full((8000,), 2.0, dtype=torch.float64)
        rate = (x @ beta).exp() * torch.distributions.Gamma(shape, shape).sample()
        y = torch.poisson(rate, generator=g)
        plan = ScorePlan.of(PoissonScores(25.0), 3, math.sqrt(largest_variance(3.0, 1e-5)), 8000)
        prior = NormalPrior(0 * beta, torch.eye(3).double() / 25)
        made = measure(plan, Held((x, y)), prior, Key.of_seed(seed))
        for rounds, kept in ((made.rounds, inside), (_unaware(made.rounds), naive)):
            found = closed_form(rounds, made.prior).rotate(made.back)
            sd = found.covariance.diagonal().sqrt()
            kept.append(((found.mean - beta) / sd).abs() < 1.96)
    assert float(torch.stack(inside).double().mean()) > 0.92
    assert float(torch.stack(naive).double().mean()) < 0.92


def _unaware(rounds: Sequence[Round]) -> list[Round]:
    return [replace(one, middle=None) for one in rounds]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_record_adds_more_than_the_bound_in_any_round(name: str) -> None:
    """Also where later rounds take another metric than the first: weights are of its features."""
    g = generator(0)
    x = torch.randn(4000, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 0.05, 0.0])
    x[:, 2] = 1.0
    x[:9, 1] = 3.0
    y = (torch.rand(4000, generator=g) < 0.5).double()
    prior = NormalPrior(torch.zeros(3).double(), torch.eye(3).double())
    plan = ScorePlan.of(FAMILIES[name], 3, distance=0.5)
    paid = measure(plan, Held((x, y)), prior, Key.of_seed(0)).paid
    assert paid is not None
    assert len(paid) > 2
    assert float(paid.max()) <= 1


@pytest.mark.parametrize("name", FAMILIES)
def test_no_record_adds_more_than_the_bound_where_levels_are_left_out(name: str) -> None:
    """Also where rare records are long in the metric of what is left, and R is smaller."""
    g = generator(0)
    x = torch.randn(4000, 6, generator=g, dtype=torch.float64)
    x[:, 1:5] = torch.eye(5).double()[torch.randint(5, (4000,), generator=g)][:, 1:]
    x[:, 4], x[:, 5] = 0, 1
    x[:9, 0] = 50.0
    x[:9, 4] = 1.0
    y = (torch.rand(4000, generator=g) < 0.5).double()
    prior = NormalPrior(torch.zeros(6).double(), torch.eye(6).double())
    plan = ScorePlan.of(FAMILIES[name], 6, 0.5, size=3.0)
    levels = torch.tensor([-1, 1, 2, 3, 4, -1])
    found = measure(plan, Held((x, y)), prior, Key.of_seed(0), levels)
    assert found.back.shape == (6, 5)
    assert found.paid is not None
    assert float(found.paid.max()) <= 1


def test_blanks_that_are_left_out_count_as_the_mean() -> None:
    """0 stands for a blank, far from all numbers: as such it would turn the slope around."""
    n, misses = 5000, []
    for seed in range(20):
        g = generator(seed)
        number = 3 + 0.5 * torch.randn(n, generator=g, dtype=torch.float64)
        y = (torch.rand(n, generator=g) < torch.sigmoid(number - 3)).double()
        blank = torch.rand(n, generator=g) < 0.03
        x = torch.stack([number * ~blank, blank.double(), torch.ones(n).double()], 1)
        plan = ScorePlan.of(LogisticScores(), 3, 0.1, n, size=2.0)
        prior = NormalPrior(torch.zeros(3).double(), torch.eye(3).double() / 25)
        made = measure(plan, Held((x, y)), prior, Key.of_seed(seed), torch.tensor([-1, 0, -1]))
        found = made.of_features()
        if not made.joined.estimated_columns[1]:
            sd = found.covariance.diagonal().sqrt()
            misses.append(float((found.mean[0] - 1) / sd[0]))
            assert float(found.mean[1] / found.mean[0]) == pytest.approx(3, abs=1)
    assert len(misses) > 5
    assert abs(sum(misses) / len(misses)) < 0.7


@pytest.mark.parametrize("name", FAMILIES)
def test_a_record_that_is_set_aside_adds_nothing(name: str) -> None:
    g = generator(0)
    x = torch.randn(40, 4, generator=g, dtype=torch.float64)
    x[:, 1:3] = torch.eye(3).double()[torch.arange(40) % 3][:, 1:]
    x[:, 3], y = 1, (torch.rand(40, generator=g) < 0.5).double()
    aside, used = torch.arange(4) == 2, torch.arange(4) != 2
    place = torch.eye(4).double()[:, used]
    columns = Joined(used, aside & False, aside, place)
    there = x[:, 2] == 0
    sums = []
    for x_, y_ in ((x, y), (x[there], y[there])):
        one, other = noisy_scores._standardise_records((x_, y_), columns, torch.eye(3).double())
        parts = FAMILIES[name].parts(one, other, 2.0, torch.ones(3).double() / 3, 1.5)
        parts = parts.robust(one, 2.0)
        sums.append(summed(parts, one))
        if len(x_) == 40:
            assert float(parts.lengths(one)[~there].abs().max()) == 0
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.17, 0.03), (0.4, 0.3, 0.14, *[0.02] * 8)])
def test_levels_that_are_left_out_bias_no_other(shares: tuple[float, ...]) -> None:
    """Their records, of which the targets are 1 more often, count to no other level."""
    n, levels = 8000, len(shares)
    effects = torch.tensor([0.0, 0.5, -0.5, *[2.0] * (levels - 3)]).double()
    truth = torch.cat([effects[1:], torch.tensor([-0.5]).double()])
    may = torch.tensor([*[0] * (levels - 1), -1])
    prior = NormalPrior(torch.zeros(levels).double(), torch.eye(levels).double() / 25)
    plan = ScorePlan.of(LogisticScores(), levels, 0.2, n, size=2.0)
    misses, left_out = [], 0
    for seed in range(60):
        g = generator(seed)
        level = torch.multinomial(torch.tensor(shares), n, True, generator=g)
        x = torch.nn.functional.one_hot(level, levels).double()
        x[:, 0] = 1
        x = x.roll(-1, 1)
        y = (torch.rand(n, generator=g) < torch.sigmoid(effects[level] - 0.5)).double()
        made = measure(plan, Held((x, y)), prior, Key.of_seed(seed), may)
        found, known = made.of_features(), made.joined.used
        left_out += int((~known[2:-1]).sum())
        misses.append(((found.mean - truth) / found.covariance.diagonal().sqrt())[[0, 1, -1]])
        out = torch.nonzero(made.joined.pooled).flatten().tolist()
        assert len({round(float(found.mean[at]), 9) for at in out}) <= 1
    each = torch.stack(misses)
    assert left_out >= 10
    assert float(each.mean(0).abs().max()) < 0.5  # -1.4 and less where they count to the base level
    assert float((each.abs() < 1.96).double().mean()) > 0.92


def rounds(noise: Tensor, true: Tensor, a: Tensor, beta: Tensor, sds: list[float]) -> list[Round]:
    """Return three rounds around ``beta``, of which matrices have the curvature ``a``."""
    made, at, sampling = [], 0, noise[-len(beta) :]
    lower = torch.linalg.cholesky(a)
    for number, sd in enumerate(sds):
        k = len(beta)
        e = noise[at : at + k * k].view(k, k)
        point = beta + true[number]
        matrix = a + 3 * sd * (e + e.T) / 2
        score = a @ (beta - point) + lower @ sampling + sd * noise[at + k * k : at + k * k + k]
        made.append(Round(point, score, matrix, sd, 3 * sd))
        at += k * k + k
    return made


def test_the_residual_has_the_variance_that_the_posterior_takes_it_for() -> None:
    k, g, sds = 2, generator(0), [4.0, 3.0, 2.0]
    a = torch.tensor([[400.0, 60.0], [60.0, 200.0]], dtype=torch.float64)
    beta = torch.tensor([1.0, -0.5], dtype=torch.float64)
    away = torch.tensor([[2.0, -1.5], [0.8, 1.0], [1.0, 0.6]], dtype=torch.float64)
    residuals = []
    for _ in range(6_000):
        noise = torch.randn(3 * (k * k + k) + k, generator=g, dtype=torch.float64)
        made = combined(rounds(noise, away, a, beta, sds))
        precision = torch.tensor([sd**-2 for sd in sds], dtype=torch.float64)
        residuals.append(made.total - made.curvature @ beta)
    found = torch.stack(residuals).T.cov()
    rho = precision / precision.sum()
    wanted = a + torch.eye(k) / precision.sum()
    for number, sd in enumerate(sds):  # by hand: H_t counts half in its own round, H_T in each
        d = -rho[number] / 2 * away[number]
        if number == 2:
            d = d - (rho[:, None] / 2 * away).sum(0)
        wanted = wanted + (3 * sd) ** 2 / 2 * (d @ d * torch.eye(k) + torch.outer(d, d))
    assert torch.allclose(found, wanted, rtol=0.08, atol=30.0)  # 4.5 standard errors


def test_without_noise_in_the_matrix_it_is_the_conjugate_posterior() -> None:
    a = torch.tensor([[30.0, 5.0], [5.0, 20.0]], dtype=torch.float64)
    g0 = torch.tensor([12.0, -3.0], dtype=torch.float64)
    prior = NormalPrior(
        torch.tensor([0.5, 0.0]).double(), torch.diag(torch.tensor([1.0, 4.0])).double()
    )
    one = Round(torch.zeros(2).double(), g0, a, 2.0, 0.0)
    found = closed_form([one], prior, dispersion=1.5)
    v = torch.linalg.inv(1.5 * a + 4 * torch.eye(2))
    precision = a @ v @ a + prior.precision
    assert torch.allclose(found.covariance, torch.linalg.inv(precision))
    mean = torch.linalg.solve(precision, a @ v @ g0 + prior.precision @ prior.mean)
    assert torch.allclose(found.mean, mean)
    assert torch.allclose(found.sampling, torch.linalg.inv(a / 1.5 + prior.precision))


def table(name: str, n: int, d: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a design, targets and the truth."""
    g = generator(seed)
    x = torch.randn(n, d + 1, generator=g, dtype=torch.float64)
    x[:, -1] = 1
    beta = torch.tensor([*[0.8, -0.4, 0.2, 0.0, 0.0, 0.0][:d], 0.3], dtype=torch.float64)
    mean = x @ beta
    if name == "logistic":
        return x, (torch.rand(n, generator=g) < torch.sigmoid(mean)).double(), beta
    if name == "poisson":
        return x, torch.poisson(mean.exp(), generator=g), beta
    return x, mean + 0.7 * torch.randn(n, generator=g), beta


def measured(name: str, n: int, d: int, epsilon: float, seed: int) -> tuple[Measured, Tensor]:
    x, y, beta = table(name, n, d, seed)
    distance = math.sqrt(largest_variance(epsilon, 1e-5))
    plan = ScorePlan.of(FAMILIES[name], d + 1, distance, n)
    eye = torch.eye(d + 1, dtype=torch.float64)
    return measure(plan, Held((x, y)), NormalPrior(0 * beta, eye / 25), Key.of_seed(seed)), beta


@pytest.mark.parametrize(
    ("name", "n", "epsilon"),
    [("logistic", 2000, 1.0), ("linear", 1500, 1.0), ("poisson", 4000, 1.0)],
)
def test_intervals_cover(name: str, n: int, epsilon: float) -> None:
    """300 intervals a family: less than .90 or all of them has a chance below 1 in 10,000."""
    inside, z, passed = [], [], []
    for seed in range(100):
        made, beta = measured(name, n, 2, epsilon, seed)
        found = made.of_features()
        z.append((found.mean - beta) / found.covariance.diagonal().sqrt())
        passed.append(found.passes)
        if found.log_scale is not None:
            middle, error = found.log_scale
            inside.append(abs(middle - math.log(0.7)) < 1.96 * error)
    scores = torch.stack(z)
    assert 0.90 <= float((scores.abs() < 1.96).double().mean()) < 1
    assert float(scores.mean(0).abs().max()) < 0.4  # of a mean of 100
    assert np.mean(passed) >= 0.95
    assert not inside or np.mean(inside) >= 0.9


def test_columns_that_say_nothing_have_the_prior_and_leave_the_others_alone() -> None:
    for kind in ("zero", "twice"):
        x, y, beta = table("logistic", 10_000, 3, 0)
        x[:, 1] = 0 if kind == "zero" else x[:, 0]
        y = (torch.rand(10_000, generator=generator(1)) < torch.sigmoid(x @ beta)).double()
        plan = ScorePlan.of(LogisticScores(), 4, 0.268, 10_000)
        zero, eye = torch.zeros(4).double(), torch.eye(4).double()
        found = measure(
            plan, Held((x, y)), NormalPrior(zero, eye / 25), Key.of_seed(0)
        ).of_features()
        assert found.measured == 3
        assert found.passes
        sd = found.covariance.diagonal().sqrt()
        unseen = (found.unseen.diagonal() / sd**2 > 0.5).tolist()
        assert unseen == (
            [False, True, False, False] if kind == "zero" else [True, True, False, False]
        )
        assert float(sd[1]) > 2.9
        assert float(sd[2:].max()) < 0.06
        assert float(((found.mean - beta) / sd)[2:].abs().max()) < 4
    both = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()  # of twice the same the sum is known
    assert float((both @ found.covariance @ both).sqrt()) < 0.1
    assert abs(float(both @ (found.mean - beta))) < 0.4


@pytest.mark.parametrize(
    "cell", [("logistic", 5000, 5, 0.2), ("linear", 2000, 2, 0.5), ("poisson", 4000, 2, 1.0)]
)
def test_the_closed_form_is_the_density_with_its_matrices_integrated_out(
    cell: tuple[str, int, int, float],
) -> None:
    """By importance sampling of 20,000 draws: errors of .01 sd in means and 1 % in sds."""
    made, _ = measured(*cell, seed=3)
    found, k = made.posterior, len(made.posterior.mean)
    z = torch.randn(20_000, k, generator=generator(0), dtype=torch.float64)
    beta = found.mean + z @ torch.linalg.cholesky(1.3 * found.covariance).T
    both = combined(made.rounds, made.dispersion)
    density = torch.vmap(lambda one: log_density(one, both))(beta)
    away = beta - made.prior.mean
    weights = density - ((away @ made.prior.precision) * away).sum(1) / 2 + (z * z).sum(1) / 2
    weights = torch.softmax(weights, 0)
    mean = weights @ beta
    sd = (weights @ (beta - mean) ** 2).sqrt()
    assert float(((mean - found.mean) / sd).abs().max()) < 0.08
    assert torch.allclose(sd, found.covariance.diagonal().sqrt(), rtol=0.05)


def test_the_noise_of_the_matrices_is_what_each_of_their_entries_does() -> None:
    """t − Aβ is linear in the matrices, whose entries have independent noise."""
    made, beta = measured("logistic", 5000, 2, 1.0, seed=3)
    rounds = list(made.rounds)
    assert len(rounds) == 3

    def left() -> Tensor:
        found = combined(rounds)
        return found.total - found.curvature @ beta

    wanted, before = torch.zeros(3, 3).double(), left()
    for at, one in enumerate(made.rounds):
        for i, j in torch.triu_indices(3, 3).T.tolist():
            entry = torch.zeros(3, 3).double()
            entry[i, j] = entry[j, i] = 1.0
            rounds[at] = replace(one, curvature=one.curvature + entry)
            moved = left() - before
            variance = one.curvature_noise**2 / (1 if i == j else 2)
            wanted += variance * torch.outer(moved, moved)
        rounds[at] = one
    assert torch.allclose(combined(rounds).noise_at(beta), wanted, rtol=1e-6)


def test_the_spread_knows_of_the_noise_at_all_that_it_spans() -> None:
    """C = (AV⁻¹A + P)⁻¹ with V's noise a mean over N(m, C), by points that are exact for it."""
    eye, half = torch.eye(3).double(), torch.full((3,), 0.5).double()
    rounds = [
        Round(half, -5 * half, 30 * eye, 2.0, 4.0),
        Round(0 * half, 20 * half, 25 * eye, 1.0, 3.0),
    ]
    prior = NormalPrior(0 * half, eye)
    found, both = closed_form(rounds, prior), combined(rounds)
    steps = math.sqrt(3) * torch.linalg.cholesky(found.covariance).T
    points = torch.cat([found.mean + steps, found.mean - steps])
    noise = torch.stack([both.noise_at(point) for point in points]).mean(0)
    v = both.curvature + both.score_variance * eye + noise
    precision = both.curvature @ torch.linalg.solve(v, both.curvature) + prior.precision
    assert torch.allclose(torch.linalg.inv(precision), found.covariance, rtol=1e-6, atol=1e-9)


def test_a_normal_that_is_cut_has_these_moments() -> None:
    for clip, deviation in ((0.5, 1.0), (2.0, 0.7), (3.0, 1.2)):

        def density(z: float, s: float = deviation) -> float:
            return float(stats.norm.pdf(z, scale=s))

        def squared(z: float, f: Callable[[float], float] = density, c: float = clip) -> float:
            return min(abs(z), c) ** 2 * f(z)

        inside, square = noisy_scores._cut_normal(clip, deviation)
        assert inside == pytest.approx(integrate.quad(density, -clip, clip)[0], rel=1e-6)
        wanted = 2 * (
            integrate.quad(squared, 0, clip)[0]
            + integrate.quad(squared, clip, clip + 12 * deviation)[0]
        )
        assert square == pytest.approx(wanted, rel=1e-6)
        assert noisy_scores._deviation_of(square, clip) == pytest.approx(deviation, rel=1e-6)


def test_the_rounds_share_the_price_exactly() -> None:
    for family in FAMILIES.values():
        assert sum(family.shares) == pytest.approx(1, abs=1e-12)
        plan = ScorePlan.of(family, 4, 0.3)
        distance = sum(multiplier**-2 for multiplier in plan.multipliers())
        assert distance == pytest.approx(plan.event.noise_multiplier**-2)
        assert distance == pytest.approx(0.3**2)
        assert plan.event.rounding > 0
