"""What one certified draw costs at δ = 1e-5 and at 1e-10, on the papers' tables.

    python benchmarks/small_delta.py

A draw from ``guides.Laplace`` at public temperatures, the papers' training rows, defaults
throughout: its certified ε at both δ, its worst-case ε for all tables at 1e-10, and the accuracy on
the test rows, mean of 100 draws. Tables are found as ``bdpvi compare`` finds them.
"""

from __future__ import annotations

import torch
from certified import Table, fitted, for_all_tables, price, table
from printed import command

from bdpvi import BayesianLogisticRegression, Fit

NAMES = ("abalone", "adult")
DELTAS = (1e-5, 1e-10)
TEMPERATURES = (1.0, 3.0, 10.0, 30.0)


def accuracy(fit: Fit, data: Table, temperature: float) -> float:
    """Return the share of test rows that a draw classifies rightly, mean of 100 draws."""
    assert isinstance(fit.model, BayesianLogisticRegression)
    design = fit.model.design(data[2].double())
    noise = torch.randn(100, design.shape[1], generator=torch.Generator().manual_seed(1)).double()
    w = fit.parameters["loc"] + temperature**0.5 * noise @ fit.parameters["scale_tril"].T
    return float(((w @ design.T > 0) == (data[3] == 1)).double().mean())


def main() -> None:
    print(command())
    names = " | ".join(f"certified ε at {delta:g}" for delta in DELTAS)
    print(f"| data | τ | {names} | ε for all tables at {DELTAS[-1]:g} | accuracy |")
    print("| --- " * (4 + len(DELTAS)) + "|")
    for name in NAMES:
        data = table(name)
        fit = fitted(data)
        worst = for_all_tables(data[0].shape[1] + 1, DELTAS[-1])
        for tau in TEMPERATURES:
            found = " | ".join(f"{price(fit, 1, delta, tau):.3g}" for delta in DELTAS)
            bound = f"{worst:.3g}" if tau == 1 else "—"
            print(
                f"| {name} | {tau:g} | {found} | {bound} | {accuracy(fit, data, tau):.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
