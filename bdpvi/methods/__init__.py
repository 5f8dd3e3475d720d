"""The methods that ``bdpvi compare`` sets against each other, by name."""

from __future__ import annotations

from collections.abc import Mapping

from bdpvi.methods.accounting import Accounting
from bdpvi.methods.dp_gd import DPGD
from bdpvi.methods.dp_sgld import DPSGLDLosses, DPSGLDOriginal
from bdpvi.methods.dpvi import DPVILosses, DPVIMoments
from bdpvi.methods.method import BAYESIAN, NONE, SENTENCES, WORST_CASE, Method, Prepared
from bdpvi.methods.non_private import NonPrivate
from bdpvi.methods.posterior import FullRankRelease, MeanFieldRelease
from bdpvi.methods.training import TrainingRelease

METHODS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (
        NonPrivate,
        FullRankRelease,
        MeanFieldRelease,
        TrainingRelease,
        DPVIMoments,
        DPVILosses,
        DPSGLDOriginal,
        DPSGLDLosses,
        DPGD,
    )
}

__all__ = [
    "BAYESIAN",
    "DPGD",
    "METHODS",
    "NONE",
    "SENTENCES",
    "WORST_CASE",
    "Accounting",
    "DPSGLDLosses",
    "DPSGLDOriginal",
    "DPVILosses",
    "DPVIMoments",
    "FullRankRelease",
    "MeanFieldRelease",
    "Method",
    "NonPrivate",
    "Prepared",
    "TrainingRelease",
]
