"""The published schemes for federated learning, and the guarantees that hold.

Published: Triastcyn and Faltings, "Federated Learning with Bayesian Differential Privacy", IEEE Big
Data 2019; thesis of Triastcyn (EPFL 2020), chapter 6. Every cost here is a worst case: each record
or client moves its sum by the whole clip. What fails here fails before anything is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bdpvi._ground.progress import Track
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bench.curves import plain_ticks
from bdpvi.privacy.conversions import Orders, minimise_epsilon
from bdpvi.privacy.norms import LEVELS
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant
from studies.study import DP, LINES, Finding, publish, sized

DELTA = 1e-5
NONE = "none"
ORDERS = Orders(torch.arange(1, 129))
CLIENTS = (10, 100, 1000)
RATES, DISTANCES, CELL_ORDERS = (0.01, 0.1, 1.0), (0.2, 1.0), (1, 2, 4, 8, 16, 32, 64)
"""With CLIENTS the 126 cells: a client's rate, a record's distance over its client's noise, λ."""
WEIGHTS = (26_010, 470_000)
CROWDS = (10, 100, 1000, 10_000)
ROUNDS = (1, 3, 10, 30, 100, 300)
LOCAL_RATE, LOCAL_NOISE = 0.1, 1.0
"""In the figure: the rate of a record in its client's batch, its client's noise over its clip."""
SAMPLED_RATE, SAMPLED_NOISE, SAMPLED_ROUNDS = 0.1, 1.0, 100
"""100 of 1,000 clients in a round."""

STYLES: Mapping[str, Mapping[str, Any]] = {
    "parallel": {"marker": "x"},
    "sequential": {"marker": "o", "mfc": "white", "alpha": 0.6},
    "the sum itself": {"marker": "o"},
}
SUM_ONLY = "sound for the full sum only"
SCHEMES = (
    ("client level", "sound", "if coins are independent and secret, noise on the sum has a fixed "
     "scale, and the divisor is the expected number of clients"),
    ("client level, divided by the number that came", "unsound", "one client less rescales sum and "
     "noise: see below"),
    ("client level, a fixed number of clients charged as Poisson", "unsound", "in place of one "
     "client less another is drawn: see below"),
    ("instance level, sequential", SUM_ONLY, "all clients take part, and nobody sees less than the "
     "sum of all; checked in 126 cells, not proved"),
    ("instance level, parallel", "sound", "for a client's own records; summed over rounds first, "
     "then the maximum over clients"),
    ("joint", "unsound", "a client that leaves takes its noise along: see below"),
    ("joint, noise of a fixed total scale", "sound", "one noise, seen by clients and by records: "
     "`bdpvi.federated.rounds`"),
)  # fmt: skip


def federated(out: Path, *, seed: int, track: Track[Any], scale: float) -> Finding:
    """Every scheme with its verdict and the numbers behind it."""
    rounds = ROUNDS[: sized(len(ROUNDS), scale, least=2)]
    rows: list[dict[str, object]] = [
        {"part": "schemes", "what": what, "verdict": verdict, "because": why}
        for what, verdict, why in SCHEMES
    ]
    rows += [*_cells(), *_observers(), *_departures(), *_fixed_size()]
    rows += [row for count in track(rounds, "rounds") for row in _growth(count)]
    rows += _maxima(rounds[-1], seed)
    table = pd.DataFrame(rows)
    text = "\n\n".join(
        (
            _schemes_text(table), _sequential_text(table), _departing_text(table),
            _sampling_text(table), _growth_text(table),
        )
    )  # fmt: skip
    title = "Schemes for federated learning"
    return publish(out, "federated", title, table, [_figure(table)], text)


def sequential(
    participants: int, clients: int, noise: float, rate: float, order: Tensor, distance: float = 1.0
) -> Tensor:
    """Return what sequential accounting claims that a round costs a record.

    Each participant computes the cost of its own batch and noise at its rate over the number of
    clients; the server sums (Triastcyn and Faltings 2019, §V-B).

    Args:
        participants: clients that take part.
        clients: N_total / N_i, all clients being of one size.
        noise: of one client.
        rate: of a record in its client's batch.
        order: λ.
        distance: how far the record moves its client's sum.

    Returns:
        λ·D_{λ+1}, in the shape of ``order``.

    >>> claim = sequential(10, 10, 1.0, 0.1, torch.tensor(1), distance=0.2)
    >>> round(float(claim / released_sum(10, 1.0, 0.1, torch.tensor(1), distance=0.2)), 4)
    1.0182
    """
    return participants * subsampled_gaussian_cost(distance, noise, rate / clients, order)


def released_sum(
    participants: int, noise: float, rate: float, order: Tensor, distance: float = 1.0
) -> Tensor:
    """Return what a round does cost a record of a participant, if their sum is all that is seen.

    The participants' noises add up to one of √K times the standard deviation. Arguments as for
    :func:`sequential`; one participant for single updates.
    """
    return subsampled_gaussian_cost(distance, noise * math.sqrt(participants), rate, order)


def betrayed(cost: Tensor, rate: float) -> Tensor:
    """Return the cost of a round in which a client takes part by a coin that is betrayed.

    The other records of a client share its coin. Where they move the sum far, who sees the sum
    knows the coin, and E e^{λL} = 1 − q + q e^c. This is also the most it can be (joint convexity).

    Args:
        cost: c, of a round in which the client takes part.
        rate: q of the coin.

    >>> round(float(betrayed(torch.tensor(1e-3), 0.1) / 1e-4), 3)
    1.0
    """
    return torch.log1p(rate * torch.expm1(cost))


def departing(clients: int, weights: int, order: float, power: float = 1.0) -> float:
    """Return D_{λ+1}, the larger direction, between one round with all noises and with one less.

    Nothing but the variance differs, by the factor (K/(K−1))^power in every weight.

    Args:
        clients: K, with the one that leaves.
        weights: number of weights.
        order: λ.
        power: 1 where every client's noise is in the sum; 2 where sum and noise of a fixed scale
            are divided by the number of clients.

    >>> round(departing(100, 26_010, 1), 2)
    1.33
    """
    ratio = torch.tensor([[(clients / (clients - 1)) ** power]], dtype=torch.float64)
    pair = GaussianPairs(ratio, torch.zeros_like(ratio))
    return weights * max(float(one.renyi(order + 1.0)) for one in (pair, pair.reverse()))


def _cells() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for clients, rate, distance, order in product(CLIENTS, RATES, DISTANCES, CELL_ORDERS):
        at = torch.tensor(order)
        claim = float(sequential(clients, clients, 1.0, rate, at, distance))
        truth = float(released_sum(clients, 1.0, rate, at, distance))
        rows.append(
            {"part": "cells", "clients": clients, "rate": rate, "distance": distance,
             "order": order, "claimed": claim, "true": truth, "ratio": claim / truth}
        )  # fmt: skip
    return rows


def _observers() -> list[dict[str, object]]:
    """Return claim and truth where the sum of all clients is not all that is seen."""
    rows: list[dict[str, object]] = []
    rate, distance, order = LOCAL_RATE, 0.2, torch.tensor(8)
    some = sequential(100, 1000, 1.0, rate, order, distance)
    everybody = sequential(1000, 1000, 1.0, rate, order, distance)
    hundred = released_sum(100, 1.0, rate, order, distance)
    single, full = (released_sum(k, 1.0, rate, order, distance) for k in (1, 1000))
    product_rate = released_sum(100, 1.0, 0.1 * rate, order, distance)
    for what, claim, truth in (
        ("the sum of all 1,000", everybody, full),
        ("the sum of 100 secret of 1,000, a coin for every record", some, product_rate),
        ("the sum of 100 secret of 1,000, a coin for every client", some, betrayed(hundred, 0.1)),
        ("the sum of 100 known of 1,000", some, hundred),
        ("the update of one client, all 1,000 taking part", everybody, single),
    ):
        ratio = float(claim / truth)
        rows.append(
            {"part": "observers", "what": what, "claimed": float(claim), "true": float(truth),
             "ratio": ratio, "verdict": "sound" if ratio >= 1 else "unsound"}
        )  # fmt: skip
    return rows


def _departures() -> list[dict[str, object]]:
    return [
        {"part": "departing", "what": what, "weights": weights, "clients": clients,
         "order": order, "true": departing(clients, weights, order, power)}
        for what, power in (("joint", 1.0), ("divided by the number that came", 2.0))
        for weights, clients, order in product(WEIGHTS, CROWDS, (1, 32))
    ]  # fmt: skip


def _fixed_size() -> list[dict[str, object]]:
    def by_coins(noise: float) -> float:
        return PrivacyLossAccountant().epsilon(noise, SAMPLED_RATE, SAMPLED_ROUNDS, DELTA)

    alone = GaussianAccountant().epsilon(SAMPLED_NOISE, 1.0, SAMPLED_ROUNDS, DELTA)
    return [
        {"part": "sampling", "what": what, "epsilon": epsilon, "guarantee": guarantee}
        for what, epsilon, guarantee in (
            ("each client by its own secret coin", by_coins(SAMPLED_NOISE), DP),
            ("a fixed number, charged as if by coins", by_coins(SAMPLED_NOISE), NONE),
            # The sum moves from −KC to −(K−2)C, with the probability to be drawn.
            ("a fixed number, all others the opposite: truth", by_coins(SAMPLED_NOISE / 2), NONE),
            ("participants known, a client's contribution set to zero", alone, DP),
        )
    ]


def _growth(rounds: int) -> list[dict[str, object]]:
    """Return ε of the schemes after some rounds, all clients taking part."""
    schemes = [("parallel", 1, partial(released_sum, 1, LOCAL_NOISE, LOCAL_RATE))]
    for k in CLIENTS:
        schemes.append(("sequential", k, partial(sequential, k, k, LOCAL_NOISE, LOCAL_RATE)))
        schemes.append(("the sum itself", k, partial(released_sum, k, LOCAL_NOISE, LOCAL_RATE)))
    return [
        {"part": "growth", "what": what, "clients": clients, "rounds": rounds,
         "epsilon": _epsilon(rounds * cost(ORDERS.values)), "guarantee": DP}
        for what, clients, cost in schemes
    ]  # fmt: skip


def _epsilon(costs: Tensor) -> float:
    """Return the smallest ε over ``ORDERS`` from the costs at all of them."""
    return minimise_epsilon(lambda order: costs[order.long() - 1], DELTA, ORDERS).value


def _maxima(rounds: int, seed: int) -> list[dict[str, object]]:
    """Return parallel ε where clients' distances differ, by both orders of sum and maximum."""
    rng = np.random.default_rng(seed)
    drawn = (rng.random((CLIENTS[-1], 1)) + rng.random((CLIENTS[-1], rounds))) / 2
    index = torch.from_numpy(np.ceil(drawn * len(LEVELS)).astype(int) - 1)
    cost = subsampled_gaussian_cost(LEVELS, LOCAL_NOISE, LOCAL_RATE, ORDERS.values)
    each = torch.stack([one[index] for one in cost])  # (orders, clients, rounds)
    rows: list[dict[str, object]] = []
    for clients in CLIENTS:
        some = each[:, :clients]
        for what, total in (
            ("sum per client, then maximum", some.sum(2).amax(1)),
            ("maximum of each round, then sum", some.amax(1).sum(1)),
        ):
            rows.append(
                {"part": "maxima", "what": what, "clients": clients, "rounds": rounds,
                 "epsilon": _epsilon(total), "guarantee": DP}
            )  # fmt: skip
    return rows


def _figure(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = table[table["part"] == "growth"]
    colors = {k: f"C{i}" for i, k in enumerate(CLIENTS)}
    for what, clients in dict.fromkeys(zip(rows["what"], rows["clients"].astype(int), strict=True)):
        curve = rows[(rows["what"] == what) & (rows["clients"] == clients)]
        label = "parallel, any K" if what == "parallel" else f"{what}, K = {clients:,}"
        style = {**LINES[DP], "color": colors.get(clients, "k"), "label": label, **STYLES[what]}
        axes.plot(curve["rounds"], curve["epsilon"], ms=4, **style)
    axes.set(xscale="log", yscale="log", xlabel="rounds")
    axes.set_ylabel(f"worst-case ε of a record, δ = {DELTA:g}")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    axes.grid(alpha=0.3)
    return figure


def _markdown(head: str, rows: list[str]) -> str:
    return f"| {head} |\n|{' --- |' * (head.count('|') + 1)}\n" + "\n".join(rows)


def _short(value: float) -> str:
    """Return a number to two digits, or all of its whole ones."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}"


def _schemes_text(table: pd.DataFrame) -> str:
    rows = table[table["part"] == "schemes"]
    listed = [
        f"| {what} | {verdict} | {why} |"
        for what, verdict, why in zip(rows["what"], rows["verdict"], rows["because"], strict=True)
    ]
    return (
        "## Verdicts\n\nWhat a scheme charges, held against what a worst-case record or client "
        "costs. A scheme that fails here fails for every way to estimate costs.\n\n"
        + _markdown("scheme | verdict | condition, or what goes wrong", listed)
    )


def _sequential_text(table: pd.DataFrame) -> str:
    cells = table[table["part"] == "cells"]
    seen = table[table["part"] == "observers"]
    listed = [
        f"| {what} | {claim:.3g} | {truth:.3g} | {ratio:.3g} | {verdict} |"
        for what, claim, truth, ratio, verdict in zip(
            *(seen[name] for name in ("what", "claimed", "true", "ratio", "verdict")), strict=True
        )
    ]
    below = int((cells["ratio"] < 1).sum())
    return (
        "## Sequential accounting\n\n"
        "K clients each charge their own noise at their rate over K, and the server sums. For the "
        f"sum of all K the claim was below the truth in {below} of {len(cells)} cells (K = 10 to "
        "1,000, rates 0.01 to 1, distances of 0.2 and 1 in the units of a client's noise, λ = 1 to "
        f"64); the least ratio is {cells['ratio'].min():.3f}. For other observers, at rate "
        f"{LOCAL_RATE:g}, distance 0.2, λ = 8, the cost of a round:\n\n"
        + _markdown("what is seen | claimed | true | ratio | claim is", listed)
        + "\n\nA client's records share its coin, and where the rest of its update moves the sum "
        "far it betrays that coin. The product of both rates is then not the rate of a record: "
        "a secret draw of clients does not save the claim."
    )


def _departing_text(table: pd.DataFrame) -> str:
    rows = table[table["part"] == "departing"]
    listed = []
    for what, weights in product(rows["what"].unique(), WEIGHTS):
        group = rows[(rows["what"] == what) & (rows["weights"] == weights)]
        pairs = group.pivot(index="clients", columns="order", values="true")
        cells = [f"{_short(pairs[1][k])} / {_short(pairs[32][k])}" for k in CROWDS]
        listed.append(f"| {what} | {weights:,} | {' | '.join(cells)} |")
    head = "scheme | weights | " + " | ".join(f"K = {k:,}" for k in CROWDS)
    return (
        "## The departing client's noise\n\n"
        "In the joint scheme the noise is what clients added to their own updates, so N(S + u, "
        "Kσ²I) is held against N(S, (K − 1)σ²I). The scheme charges u alone. The variances alone "
        "cost, in one round, D at λ = 1 / λ = 32, about pα/(4K²) for p weights; they betray that "
        "somebody is missing. Dividing a sum with noise of a fixed scale by the number of clients "
        f"that came does the same, about four times as much:\n\n{_markdown(head, listed)}\n\n"
        "Remedy: a total noise that does not depend on who took part, and the expected number as "
        "the divisor."
    )


def _sampling_text(table: pd.DataFrame) -> str:
    rows = table[table["part"] == "sampling"]
    listed = [
        f"| {what} | {epsilon:.2f} | {guarantee} |"
        for what, epsilon, guarantee in zip(
            rows["what"], rows["epsilon"], rows["guarantee"], strict=True
        )
    ]
    return (
        f"## Sampling clients\n\n1,000 clients, {1000 * SAMPLED_RATE:g} a round, noise multiplier "
        f"{SAMPLED_NOISE:g}, {SAMPLED_ROUNDS} rounds, δ = {DELTA:g}:\n\n"
        + _markdown("clients of a round | ε | guarantee", listed)
        + "\n\nFrameworks draw a fixed number by default. With one client less another is drawn "
        "in its place, so that the sum may move by twice the clip: where all others send the "
        "opposite of its update, ε is that of coins at half the noise. To whoever knows the "
        "participants nothing is amplified in any case."
    )


def _growth_text(table: pd.DataFrame) -> str:
    growth = table[table["part"] == "growth"]
    last = growth[growth["rounds"] == growth["rounds"].max()]
    falls = bool((last[last["what"] == "sequential"]["epsilon"].diff().dropna() < 0).all())
    listed = [
        f"| {what} | {'any' if what == 'parallel' else format(int(k), ',')} | {epsilon:.3g} |"
        for what, k, epsilon in zip(last["what"], last["clients"], last["epsilon"], strict=True)
    ]
    maxima = table[table["part"] == "maxima"].pivot(
        index="clients", columns="what", values="epsilon"
    )
    columns = ("sum per client, then maximum", "maximum of each round, then sum")
    order = [
        f"| {k:,} | {' | '.join(f'{maxima[what][k]:.3g}' for what in columns)} |" for k in CLIENTS
    ]
    return (
        "## Growth with rounds and clients\n\n"
        "The thesis's Figure 6.1 redone with worst-case records (its settings are not on record): "
        f"a record's rate {LOCAL_RATE:g} in its client's batch, each client's noise "
        f"{LOCAL_NOISE:g} times the clip, δ = {DELTA:g}, conversion by moments, all clients in "
        f"every round. After {int(growth['rounds'].max())} rounds:\n\n"
        + _markdown("scheme | K | ε of a record", listed)
        + f"\n\n**{'Reproduced' if falls else 'Not reproduced'}**: sequential ε falls with the "
        "number of clients, parallel ε does not. Parallel accounting covers what one client sends, "
        "which has that client's noise and no other. Sequential accounting is about the sum, where "
        "K noises hide a record; the cost of that sum itself is smaller still.\n\n"
        "Where clients' distances differ the maximum over clients even grows with their number. "
        "Distances (u_k + v_kt)/2 of the clip, u and v uniform:\n\n"
        + _markdown("K | " + " | ".join(columns), order)
    )
