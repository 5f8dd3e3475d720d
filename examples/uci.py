"""Abalone or Adult: accuracy without privacy, of one draw and of ten. Prints one row of a table.

    python examples/uci.py abalone [FOLDER OF abalone.data]
    python examples/uci.py adult [FOLDER OF adult.data AND adult.test]

Is an abalone older than nine rings? Does a person earn more than 50,000 dollars? The draws are real
releases, so accuracies differ from run to run as draws differ; ``benchmarks/main_job.py`` prints
their mean.
"""

from __future__ import annotations

import sys

import torch

import bdpvi
from bdpvi import datasets, guides
from bdpvi.inference.svi import default_optimiser
from bdpvi.recipes.metrics import accuracy

STEPS, TEMPERATURE, DELTA = 1000, 5.0, 1e-5
# By table: steps and learning rate without privacy, learning rate with it, records left out.
TABLES = {
    "abalone": (datasets.load_abalone, 2000, 0.1, 0.05, None),
    "adult": (datasets.load_adult, 1000, 0.3, 0.3, 2000),
}

name = sys.argv[1] if len(sys.argv) > 1 else "abalone"
load, public_steps, public_rate, private_rate, records = TABLES[name]
split = load(sys.argv[2] if len(sys.argv) > 2 else None)

# Not private: the likelihood as it is, and the fewest neighbours, as nothing will be released.
model = bdpvi.BayesianLogisticRegression.unweighted()
reference = bdpvi.fit(
    model,
    guides.MeanField(model),
    split.train,
    training=bdpvi.Training(
        steps=public_steps, optim=default_optimiser(public_steps, lr=public_rate, decay=1e-3)
    ),
    neighbours=bdpvi.Coupled(bdpvi.Remove(records=3)),
)
public = accuracy(model, {"w": reference.posterior.mean[None]}, split.test)

# Private: bounded influence, and training records left out: every one, or a sample of them.
model = bdpvi.BayesianLogisticRegression(clip=1.0)
fit = bdpvi.fit(
    model,
    guides.MeanField(model),
    split.train,
    training=bdpvi.Training(
        steps=STEPS, rate=0.1, optim=default_optimiser(STEPS, lr=private_rate, decay=1e-3)
    ),
    neighbours=bdpvi.Coupled(bdpvi.Remove(records)),
)
first = bdpvi.release(fit, draws=1, temperature=TEMPERATURE, delta=DELTA)
others = bdpvi.release(fit, draws=9, temperature=TEMPERATURE, delta=DELTA)  # the bill is for ten
one = accuracy(model, first.latents, split.test)
ten = accuracy(model, {"w": torch.cat([first.samples, others.samples])}, split.test)
prices = [bound for release in (first, others) if (bound := release.cost.bayesian)]

print("data     non-private  one draw  Bayesian-DP ε  ten draws  Bayesian-DP ε  δ      reliable")
print(
    f"{fit.data_name:<7}  {public:<11.4f}  {one:<8.4f}  {prices[0].epsilon:<13.3f}  "
    f"{ten:<9.4f}  {prices[1].epsilon:<13.3f}  {DELTA:<5g}  "
    f"{'yes' if all(price.reliable for price in prices) else 'no'}"
)
