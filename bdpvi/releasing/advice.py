"""What to do about an ε that is not reliable, in words."""

from __future__ import annotations

import math
from dataclasses import replace

from bdpvi._fit import Fit
from bdpvi.accounting.worst_case import GaussianAccountant, calibrate
from bdpvi.guides import MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.sensitivity import largest

CLIP = 0.5
"""Proposed where a model has none; the default of ``bdpvi fit``."""
TARGET = 1.0
"""The worst-case ε at which the proposal's noise is told."""


def advice(fit: Fit, delta: float) -> str:
    """Return which options make ε reliable, and how much noise that costs.

    A function of hyper-parameters alone: it tells nothing of the records.

    Args:
        fit: whose releases have an ε that is not reliable.
        delta: δ of the guarantee that is proposed instead.

    >>> from bdpvi import datasets, fit, guides
    >>> model = BayesianLogisticRegression(clip=0.5)
    >>> data = datasets.load_breast_cancer().train
    >>> advice(fit(model, guides.MeanField(model), data, progress=False), 1e-5)[:50]
    'Fit again with noise_scale=1 (--noise-scale 1): th'
    """
    model = fit.model
    if not isinstance(model, BayesianLogisticRegression):
        return (
            "Release at a higher temperature, which lowers ε and evens out what records cost, or "
            "bound every record's score: the explanation of reliable has the routes"
        )
    values = {"noise_scale": "1"}
    if model.clip is None:
        model = replace(model, clip=CLIP)
        values = {"clip": f"{CLIP:g}"} | values
    bound = largest(model, MeanField(model, noise_scale=1.0))
    assert bound is not None
    noise = calibrate(GaussianAccountant(), epsilon=TARGET, delta=delta, rate=1.0, steps=1)
    arguments = " and ".join(f"{name}={value}" for name, value in values.items())
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    return (
        f"Fit again with {arguments} ({options}): the cost of any record is then bounded, so that "
        f"ε is reliable and a worst-case one; ε = {TARGET:g} then costs noise of standard "
        f"deviation {noise * math.sqrt(bound):.2g} in every weight. The settings of "
        f"bdpvi.recommended({TARGET:g}), which `bdpvi fit` has without options, lower it to 0.1"
    )
