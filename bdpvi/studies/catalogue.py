"""The studies by name: what ``bdpvi study NAME`` runs."""

from __future__ import annotations

from collections.abc import Mapping

from bdpvi.studies import composition, coverage, gaussian
from bdpvi.studies.study import Study

STUDIES: Mapping[str, Study] = {
    "weibull-clipping": Study(
        "ε against σ for heavy-tailed gradients, clipped at quantiles of their norms and not.",
        gaussian.weibull_clipping,
    ),
    "steps": Study("ε over 10,000 steps at several noise levels.", gaussian.steps),
    "orders": Study("ε against the order λ for several clipping norms.", gaussian.orders),
    "composition": Study(
        "Hölder's composition against naive composition and the panel.",
        composition.composition,
    ),
    "coverage": Study(
        "How often each estimator's bound falls below the truth, and the rule that tells when.",
        coverage.run,
    ),
}
