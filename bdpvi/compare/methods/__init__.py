"""The methods that ``bdpvi compare`` sets against each other, by name."""

from __future__ import annotations

from collections.abc import Mapping

from bdpvi.accounting.settings import Accounting
from bdpvi.compare.methods.dp_gd import DPGD
from bdpvi.compare.methods.dp_sgld import DPSGLDLosses, DPSGLDOriginal
from bdpvi.compare.methods.dpvi import DPVILosses, DPVIMoments
from bdpvi.compare.methods.method import NONE, SENTENCES, Method, Prepared
from bdpvi.compare.methods.non_private import NonPrivate
from bdpvi.compare.methods.posterior import (
    FullRankRelease,
    FullRankWorstCase,
    MeanFieldRelease,
    MeanFieldWorstCase,
)
from bdpvi.compare.methods.training import TrainingRelease
from bdpvi.releasing.guarantees import BAYESIAN, WORST_CASE

METHODS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (
        NonPrivate,
        FullRankRelease,
        FullRankWorstCase,
        MeanFieldRelease,
        MeanFieldWorstCase,
        TrainingRelease,
        DPVIMoments,
        DPVILosses,
        DPSGLDOriginal,
        DPSGLDLosses,
        DPGD,
    )
}

TUNED = tuple(name for name, method in METHODS.items() if method.space)
"""The methods that have hyper-parameters of their own to be searched."""

__all__ = [
    "BAYESIAN",
    "DPGD",
    "METHODS",
    "NONE",
    "SENTENCES",
    "TUNED",
    "WORST_CASE",
    "Accounting",
    "DPSGLDLosses",
    "DPSGLDOriginal",
    "DPVILosses",
    "DPVIMoments",
    "FullRankRelease",
    "FullRankWorstCase",
    "MeanFieldRelease",
    "MeanFieldWorstCase",
    "Method",
    "NonPrivate",
    "Prepared",
    "TrainingRelease",
]
