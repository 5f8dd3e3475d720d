"""The methods that ``bdpvi compare`` compares with each other and the base rate, by name."""

from __future__ import annotations

from collections.abc import Mapping

from bdpvi.bench.methods.dp_gd import DPGD, DPSGLDLosses, DPSGLDOriginal
from bdpvi.bench.methods.dpvi import DPVILosses, DPVIMoments, NonPrivate
from bdpvi.bench.methods.method import NONE, SENTENCES, Method, PreparedMethod
from bdpvi.bench.methods.objective_perturbation import PerturbedMinimum
from bdpvi.bench.methods.posterior import FullRankDraws, LaplaceDraws, MeanFieldDraws
from bdpvi.bench.methods.without_privacy import BaseRate, LogisticRegression

METHODS: Mapping[str, type[Method]] = {
    method.name: method
    for method in (
        LogisticRegression,
        NonPrivate,
        LaplaceDraws,
        FullRankDraws,
        MeanFieldDraws,
        DPVIMoments,
        DPVILosses,
        DPSGLDOriginal,
        DPSGLDLosses,
        DPGD,
        PerturbedMinimum,
    )
}

__all__ = ["METHODS", "NONE", "SENTENCES", "BaseRate", "Method", "PreparedMethod"]
