"""The source of the ε published for networks, its leakage check, and DP-SGD for comparison.

Published: Triastcyn and Faltings, "Bayesian Differential Privacy for Machine Learning", ICML 2020,
Table I; thesis of Triastcyn (EPFL 2020), Table 5.2; settings from the first author's notebooks.
The network here is small and learns scikit-learn's digits; noise, rate and steps are those that
were published for MNIST.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from bdpvi._ground.progress import Track
from bdpvi.networks.deep import DPSGDSettings, make_private
from bdpvi.privacy.conversions import Orders, minimise_epsilon
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant
from studies.compositions import ByHolder
from studies.study import DP, LINES, Finding, publish, sized

DELTA = 1e-5
BATCH, RECORDS, STEPS, RATE = 1024, 60_000, 1160, 0.02
"""The published MNIST run: 20 epochs, incomplete batches dropped; learning rate."""
NOISE, CLIP, GAMMA, PUBLISHED_ORDERS = 0.1, 1.0, 1e-16, (2, 4, 8, 16, 32)
"""Noise on the mean of a batch; clip of that mean; γ of a step; λ."""
LEFT_OUT, UPDATED = 8, 0.1
"""Batch means with one record left out in a step; the fraction of the weights that is updated."""
CLIPS = (5.0, 10.0, 20.0, 29.0, 50.0)
CHECKED, DRAWS = 100, 200
NONE = "none"
PUBLISHED: Mapping[float, float] = {DELTA: 0.62, 1e-10: 0.95}
"""ε for MNIST at each δ."""
SIMULATED, SPREAD = (10.0, 20.0, 30.0), 0.5
"""Medians of the log-normal norms of simulated gradients, and the sd of their logarithm."""
DIGITS = ((1.0, 1.0), (4.0, 0.3))
"""Clip and learning rate; with noise multiplier 2, rate 0.1 and 300 steps."""


class Digits(NamedTuple):
    """Images and classes: 1,100 to train with, 347 for a panel, 350 to test with."""

    train: tuple[Tensor, Tensor]
    panel: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def networks(out: Path, *, seed: int, track: Track[Any], scale: float) -> Finding:
    """ε as the notebooks estimate it, their leakage check, and DP-SGD on digits."""
    data, rows = _digits(seed), []
    module = _network(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        distances = recorded(module, data.train, sized(STEPS, scale), track)
        simulated = {norm: _simulated(norm, sized(STEPS, scale)) for norm in SIMULATED}
        check = leakage_check(module, data, sized(DRAWS, scale, least=2), seed)
    for delta in PUBLISHED:
        rows.append(_row("floor log(1/δ)/32", delta, _floor(delta), NONE))
        for what, found in distances.items():
            rows.append(
                _row(f"published estimator, {what}", delta, published_epsilon(found, delta), NONE)
            )
        for norm, found in simulated.items():
            what, epsilon = (
                f"published estimator, norms about {norm:g}",
                published_epsilon(found, delta),
            )
            rows.append(_row(what, delta, epsilon, NONE, norm))
        for clip in CLIPS:
            rows.append(
                _row(f"worst case, clip {clip:g}", delta, worst_case(clip, delta), DP, clip)
            )
    steps = sized(300, scale)
    learned = [
        row
        for clip, rate in track(DIGITS, "digits")
        for row in _dp_sgd(data, clip, rate, steps, seed)
    ]
    table = pd.DataFrame([*rows, *learned])
    text = f"{_published_text(table)}\n\n{_check_text(check)}\n\n{_digits_text(table, steps)}"
    figures = [_figure(table), _check_figure(module, data)]
    return publish(out, "networks", "Networks", table, figures, text)


def _floor(delta: float) -> float:
    return math.log(1 / delta) / max(PUBLISHED_ORDERS)


def worst_case(
    clip: float, delta: float = DELTA, accountant: WorstCaseAccountant | None = None
) -> float:
    """Return ε of DP-SGD with the published noise, rate and steps if each record were clipped.

    Args:
        clip: bound on the norm of a record's gradient; noise on the sum of a batch is 102.4.
        delta: δ.
        accountant: by default privacy loss distributions.

    >>> round(worst_case(20.0), 2)
    0.4
    """
    accountant = accountant or PrivacyLossAccountant()
    return accountant.epsilon(NOISE * BATCH / clip, BATCH / RECORDS, STEPS, delta)


def published_epsilon(distances: Tensor, delta: float = DELTA) -> float:
    """Return ε as the notebooks estimate it. NOT SOUND: pairs share records, no record is clipped.

    Student's t at γ = 1e-16 over all pairs of a step, which are not independent, of the cost of a
    subsampled Gaussian at the pair's distance, which is not that of adding a record; Hölder over
    the steps; Chernoff at λ = 2, 4, 8, 16 or 32.

    Args:
        distances: between the batch means of each step, (T, pairs).
        delta: δ.

    >>> round(published_epsilon(torch.zeros(10, 28)), 2)  # nothing but the floor
    0.36
    """
    rule = ByHolder(len(distances))

    def cost(orders: Tensor) -> Tensor:
        each = [subsampled_gaussian_cost(d, NOISE, BATCH / RECORDS, orders) for d in distances]
        return rule.total(each, GAMMA).log_bound

    return minimise_epsilon(
        cost, delta, Orders(torch.tensor(PUBLISHED_ORDERS)), rule="chernoff"
    ).value


def recorded(
    module: nn.Module, data: tuple[Tensor, Tensor], steps: int, track: Track[Any]
) -> Mapping[str, Tensor]:
    """Train as the notebooks do, and return the distances that they measure, each (T, 28).

    Eight means of the batch with a record left out, clipped as a whole like the update.
    """
    whole, masked = [], []
    for _ in track(range(steps), "recorded gradients"):
        batch = torch.randperm(len(data[0]))[:BATCH]
        gradients = record_gradients(module, data[0][batch], data[1][batch])
        mean = _clipped(gradients.mean(0, keepdim=True))[0]
        means = left_out(gradients)
        mask = torch.rand(len(mean)) < UPDATED
        whole.append(torch.pdist(means))
        masked.append(torch.pdist(means[:, mask]))
        update = RATE * mask * (mean + NOISE * torch.randn(len(mean)))
        with torch.no_grad():
            weights = nn.utils.parameters_to_vector(module.parameters())
            nn.utils.vector_to_parameters(weights - update.to(weights), module.parameters())
    return {"digits": torch.stack(masked), "digits, all weights": torch.stack(whole)}


def _simulated(median: float, steps: int) -> Tensor:
    """Return such distances for orthogonal gradients, a tenth of whose weights is updated."""
    norms = median * torch.exp(SPREAD * torch.randn(steps, LEFT_OUT).double())
    first, second = torch.triu_indices(LEFT_OUT, LEFT_OUT, 1)
    apart = (norms[:, first].square() + norms[:, second].square()).sqrt()
    return math.sqrt(UPDATED) * apart / (BATCH - 1)


def record_gradients(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each record's loss, (B, weights), in double precision."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, weights, (x[None],)), y[None])

    found: dict[str, Tensor] = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    return torch.cat([one.flatten(1) for one in found.values()], 1).double()


def left_out(gradients: Tensor) -> Tensor:
    """Return clipped means of a batch without its first record, its second, and so on, (8, W)."""
    return _clipped((gradients.sum(0) - gradients[:LEFT_OUT]) / (len(gradients) - 1))


def _clipped(means: Tensor) -> Tensor:
    longer: Tensor = means.norm(dim=1, keepdim=True) / CLIP
    return means / longer.clamp(min=1)


def leakage_check(module: nn.Module, data: Digits, draws: int, seed: int) -> Mapping[str, float]:
    """Do the published check, then do it where there is nothing to find.

    The check: distances between the means of a batch with one record left out, all pairs of 100
    training records against all pairs of 100 others, by a t-test and Levene's test.

    Returns:
        The p values of both tests, and the share of p < 0.05 among pairs of samples of one and the
        same set of held-out records.
    """
    rng = np.random.default_rng(seed)
    inside, outside = (record_gradients(module, *part) for part in (data.train, data.panel))

    def p_values(first: Tensor, second: Tensor) -> tuple[float, float]:
        # A mean without record i differs from one without j by (g_j - g_i)/(B - 1); neither test
        # heeds the factor.
        pair = [torch.pdist(g).numpy() for g in (first, second)]
        return float(stats.ttest_ind(*pair).pvalue), float(stats.levene(*pair).pvalue)

    t, levene = p_values(inside[:CHECKED], outside[:CHECKED])
    same = []
    for _ in range(draws):
        order = torch.from_numpy(rng.permutation(len(outside)))
        same.append(p_values(outside[order[:CHECKED]], outside[order[CHECKED : 2 * CHECKED]]))
    false = (np.array(same) < 0.05).mean(0)
    return {"t": t, "Levene": levene, "t, nothing": false[0], "Levene, nothing": false[1]}


def _digits(seed: int) -> Digits:
    found = load_digits()
    x = torch.tensor(found.data / 16 - 0.5, dtype=torch.float32)
    y = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return Digits(*((x[part], y[part]) for part in order.split([1100, 347, 350])))


def _network(seed: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def _dp_sgd(
    data: Digits, clip: float, rate: float, steps: int, seed: int
) -> list[dict[str, object]]:
    """Train on the digits by DP-SGD; return what the run cost."""
    module = _network(seed)
    private = make_private(
        module, torch.optim.SGD(module.parameters(), lr=rate), loss=F.cross_entropy,
        data=data.train, rate=0.1, max_grad_norm=clip, noise_multiplier=2.0,
        settings=DPSGDSettings(panel=data.panel, seed=seed, records=len(data.train[0])),
    )  # fmt: skip
    for _ in range(steps):
        private.step()
    with torch.no_grad():
        accuracy = float((module(data.test[0]).argmax(1) == data.test[1]).double().mean())
    name, path = f"digits, clip {clip:g}", private.cost(DELTA).path
    assert path is not None  # its costs were met on a path
    quartiles = torch.quantile(
        private.per_record(DELTA), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    ).tolist()
    worst = _row(f"{name}, worst case", DELTA, private.worst_case(DELTA).epsilon, DP, clip)
    return [
        {**worst, "accuracy": accuracy},
        _row(f"{name}, path", DELTA, path.epsilon, NONE, clip),
        *(
            _row(f"{name}, {part} of the records", DELTA, epsilon, NONE, clip)
            for part, epsilon in zip(
                ("a quarter", "half", "three quarters"), quartiles, strict=True
            )
        ),
    ]


def _row(
    what: str, delta: float, epsilon: float, guarantee: str, norm: float = math.nan
) -> dict[str, object]:
    """Return a row of the table; P(A) bounds the chance to guess membership right if δ = 0."""
    chance = 1 / (1 + math.exp(-epsilon))
    return {
        "what": what, "norm": norm, "delta": delta, "epsilon": epsilon, "guarantee": guarantee,
        "P(A)": chance,
    }  # fmt: skip


def _figure(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(6.5, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = table[(table["delta"] == DELTA) & ~table["what"].str.startswith("digits")]
    for start, label, style in (
        ("worst case", "DP-SGD, worst case: any record", {"marker": "o", **LINES[DP]}),
        (
            "published estimator, norms",
            "published estimator: no guarantee",
            {"marker": "x", "ls": ""},
        ),
    ):
        curve = rows[rows["what"].str.startswith(start)]
        axes.plot(curve["norm"], curve["epsilon"], label=label, **style)
    for label, epsilon, color in (
        ("published for MNIST: no guarantee", PUBLISHED[DELTA], "C3"),
        ("floor of the published conversion", _floor(DELTA), "0.5"),
    ):
        axes.axhline(epsilon, ls=":", lw=1.2, color=color, label=label)
    axes.set(
        xlabel="clip, or median norm, of the records' gradients",
        ylabel=f"ε at δ = {DELTA:g}",
        ylim=(0, None),
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


def _check_figure(module: nn.Module, data: Digits) -> Figure:
    """Return the pair distances that the leakage check compares."""
    figure = Figure(figsize=(7, 3.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for label, part in (("training records", data.train), ("held-out records", data.panel)):
        apart = torch.pdist(record_gradients(module, *part)[:CHECKED]) / (CHECKED - 1)
        axes.hist(apart.numpy(), bins=60, histtype="step", density=True, label=label)
    axes.set(
        xlabel=f"distance of two means of {CHECKED} gradients, each with one record left out",
        ylabel="density",
    )
    axes.legend(frameon=False, fontsize=8)
    return figure


def _listed(table: pd.DataFrame, delta: float, start: str) -> str:
    rows = table[(table["delta"] == delta) & table["what"].str.startswith(start)]
    return "\n".join(
        f"| {what} | {guarantee} | {epsilon:.3f} | {chance:.3f} |"
        for what, guarantee, epsilon, chance in zip(
            rows["what"], rows["guarantee"], rows["epsilon"], rows["P(A)"], strict=True
        )
    )


_HEAD = "| what | guarantee | ε | P(A) |\n| --- | --- | --- | --- |\n"


def _published_text(table: pd.DataFrame) -> str:
    return (
        "## Where 0.62 comes from\n\n"
        "For MNIST the thesis has ε = 0.62 at δ = 1e-5 and 0.95 at 1e-10. The notebooks add noise "
        f"of standard deviation {NOISE:g} to the *mean* of a batch of {BATCH:,}, which is "
        f"{NOISE * BATCH:g} on the sum, clip that mean and no record, and estimate costs from the "
        f"{LEFT_OUT * (LEFT_OUT - 1) // 2} distances between {LEFT_OUT} means with a record left "
        "out, in a random tenth of the weights. Here this estimator stands on gradients recorded "
        f"on scikit-learn's digits, with q = {BATCH:,}/{RECORDS:,}, and on simulated ones, "
        f"orthogonal and with log-normal norms (sd of the logarithm {SPREAD:g}). Beside it is the "
        "worst case, by privacy loss distributions, of DP-SGD with that noise and rate over "
        f"{STEPS:,} steps, had each record's gradient been clipped. P(A) = 1/(1 + exp(−ε)) is the "
        "published column; at δ > 0 it is no bound.\n\n"
        f"At δ = 1e-05:\n\n{_HEAD}"
        + "\n".join(_listed(table, DELTA, one) for one in ("floor", "published", "worst case"))
        + f"\n\nAt δ = 1e-10:\n\n{_HEAD}"
        + "\n".join(_listed(table, 1e-10, one) for one in ("floor", "published", "worst case"))
        + f"\n\nOf the published ε {_floor(DELTA) / PUBLISHED[DELTA]:.0%} and "
        f"{_floor(1e-10) / PUBLISHED[1e-10]:.0%} are the floor of Chernoff's conversion at λ ≤ 32; "
        f"they lie {PUBLISHED[1e-10] - PUBLISHED[DELTA]:.2f} apart, the floors "
        f"{_floor(1e-10) - _floor(DELTA):.2f}. And the noise is so large that DP-SGD would have "
        "promised 0.61 to *every* record at a clip of 29. Rows without a guarantee prove nothing: "
        "pairs share records, their distance is not that of adding a record, and without a clip "
        "nothing bounds the next one."
    )


def _check_text(check: Mapping[str, float]) -> str:
    return (
        "## The leakage check\n\n"
        "Published as evidence: the distances of training records and those of test records do "
        "not differ (thesis, Figures 5.6, 5.7), with p above 0.05; the second picture has those of "
        f"this study. Here, for {CHECKED} records each: t-test p = "
        f"{check['t']:.2g}, Levene's test p = {check['Levene']:.2g}. Neither value says anything "
        "about a single record:\n\n"
        "- Privacy is in the noise, and the noise is not in the check. Without any noise p would "
        "be computed from the same distances, while whoever knows the other records of a batch "
        "could subtract them and be left with the record's gradient.\n"
        "- It compares distributions over records; a record that the weights give away does not "
        "change those.\n"
        f"- The {CHECKED * (CHECKED - 1) // 2:,} pairs of {CHECKED} records are not independent, "
        "which both tests assume. Two samples of one and the same set of held-out records differ "
        f"at p < 0.05 in {check['t, nothing']:.0%} (t) and {check['Levene, nothing']:.0%} (Levene) "
        "of all draws, where 5 % should."
    )


def _digits_text(table: pd.DataFrame, steps: int) -> str:
    learned = table[table["what"].str.startswith("digits")]
    reached = ", ".join(
        f"clip {clip:g}: {accuracy:.3f}"
        for clip, accuracy in learned.dropna(subset="accuracy")[["norm", "accuracy"]].to_numpy()
    )
    return (
        "## DP-SGD on digits\n\n"
        "64-32-10 ReLU, 1,100 records to train with, a panel of 347, noise multiplier 2, q = 0.1, "
        f"{steps} steps, one seeded run. Test accuracy: {reached}. Rows of the path, and of single "
        "records on it, are diagnostics: they guarantee nothing about the algorithm.\n\n"
        f"{_HEAD}{_listed(table, DELTA, 'digits')}"
    )
