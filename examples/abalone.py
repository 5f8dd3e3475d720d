"""Abalone: is the animal older than nine rings? Prints one row of a table.

    python examples/abalone.py [FOLDER OF abalone.data]

The draws are real releases, so accuracies differ from run to run by what one draw differs from the
next; ``bdpvi.compare.metrics.expected_accuracy`` gives their mean.
"""

from __future__ import annotations

import sys

import torch

import bdpvi
from bdpvi import datasets, guides
from bdpvi.compare.metrics import accuracy
from bdpvi.inference.svi import default_optimiser

STEPS, TEMPERATURE, DELTA = 1000, 5.0, 1e-5

split = datasets.load_abalone(sys.argv[1] if len(sys.argv) > 1 else None)

# Not private: the likelihood as it is, and the fewest neighbours, as nothing will be released.
model = bdpvi.BayesianLogisticRegression()
reference = bdpvi.fit(
    model,
    guides.MeanField(model),
    split.train,
    steps=2000,
    optim=default_optimiser(2000, lr=0.1, decay=1e-3),
    neighbours=bdpvi.Coupled(bdpvi.Remove(records=3)),
)
public = accuracy(model, {"w": reference.posterior.mean[None]}, split.test)

# Private: bounded influence, and every training record left out once.
model = bdpvi.BayesianLogisticRegression(clip=1.0)
fit = bdpvi.fit(
    model,
    guides.MeanField(model),
    split.train,
    steps=STEPS,
    rate=0.1,
    optim=default_optimiser(STEPS, lr=0.05, decay=1e-3),
    neighbours=bdpvi.Coupled(bdpvi.Remove()),
)
first = bdpvi.release(fit, draws=1, temperature=TEMPERATURE, delta=DELTA)
others = bdpvi.release(fit, draws=9, temperature=TEMPERATURE, delta=DELTA)  # the bill is for ten
one = accuracy(model, first.latents, split.test)
ten = accuracy(model, {"w": torch.cat([first.samples, others.samples])}, split.test)

print("data     non-private  one draw  Bayesian-DP ε  ten draws  Bayesian-DP ε  δ      reliable")
print(
    f"{fit.data_name:<7}  {public:<11.4f}  {one:<8.4f}  {first.spent.epsilon:<13.3f}  "
    f"{ten:<9.4f}  {others.spent.epsilon:<13.3f}  {DELTA:<5g}  "
    f"{'yes' if first.spent.reliable and others.spent.reliable else 'no'}"
)
