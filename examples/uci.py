"""Abalone or Adult: a draw from the posterior under a certified Bayesian ε, or another guarantee.

    python examples/uci.py adult [FOLDER OF adult.data AND adult.test]
    python examples/uci.py abalone [FOLDER OF abalone.data]

Does a person earn more than 50,000 dollars? Is an abalone older than nine rings? The draw is a real
release, so predictions differ from run to run.
"""

from __future__ import annotations

import sys

import bdpvi
from bdpvi import datasets, guides
from bdpvi.models.predictions import predictive_means
from bdpvi.tables.metrics import metrics

EPSILON, DELTA = 0.2, 1e-5
# By table: a round number of records, which counts as public.
TABLES = {
    "abalone": (datasets.abalone.load_abalone, 3000),
    "adult": (datasets.adult.load_adult, 40_000),
}

name = sys.argv[1] if len(sys.argv) > 1 else "abalone"
load, rows = TABLES[name]
split = load(sys.argv[2] if len(sys.argv) > 2 else None)

model = bdpvi.BayesianLogisticRegression()
fit = bdpvi.fit(model, guides.Laplace(model), split.train, progress=False)
print(f"{name}: {fit.records} records, {len(fit.feature_names)} columns")

# The temperature is planned from ε, δ, the columns and the declared number of rows alone.
planned = bdpvi.BayesianDP(rows=rows)
try:
    release = bdpvi.release(fit, epsilon=EPSILON, guarantee=planned, delta=DELTA)
    print(f"certified at ε = {EPSILON:g}: yes")
except bdpvi.BudgetExceededError as error:
    print(f"certified at ε = {EPSILON:g}: no. {error}")
    print(
        f"Why: δ is a mean over the records that might join, and N·δ = {fit.records * DELTA:.2g}. "
        "So few records cannot rule out one in N that gives itself away, unless no record could."
    )
    temperature = planned.temperature(fit, 1, EPSILON, DELTA)
    release = bdpvi.release(
        fit, temperature=temperature, guarantee=bdpvi.TypicalRecord(), delta=DELTA
    )
    print(f"What holds of a draw at the same public temperature, {temperature:g}:")

chances = predictive_means(model, release.latents, split.test.x)[0]
measured = metrics(chances, split.test.y)
print(f"released: {release}")
print(f"cost, for the owner: {release.cost}")
print(f"log score {measured['log_score']:.4f}, accuracy {measured['accuracy']:.4f} on test rows")
