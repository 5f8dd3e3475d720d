"""The studies by name: what ``bdpvi study NAME`` runs."""

from __future__ import annotations

from collections.abc import Mapping

from bdpvi import study_coverage, study_gaussian
from bdpvi.study import Study

STUDIES: Mapping[str, Study] = {
    "weibull-clipping": Study(
        "ε against σ for heavy-tailed gradients, clipped at quantiles of their norms and not.",
        study_gaussian.weibull_clipping,
    ),
    "steps": Study("ε over 10,000 steps at several noise levels.", study_gaussian.steps),
    "orders": Study("ε against the order λ for several clipping norms.", study_gaussian.orders),
    "composition": Study(
        "Hölder's composition against naive composition and the panel.",
        study_gaussian.composition,
    ),
    "coverage": Study(
        "How often each estimator's bound falls below the truth, and the rule that tells when.",
        study_coverage.run,
    ),
}
