"""The studies by name: what ``PYTHONPATH=benchmarks python -m studies NAME`` runs."""

from __future__ import annotations

from collections.abc import Mapping

from studies import accountants, composition, coverage, federated, gaussian, generative, networks
from studies.study import Run

STUDIES: Mapping[str, Run] = {
    "accountants": accountants.accountants,
    "weibull-clipping": gaussian.weibull_clipping,
    "steps": gaussian.steps,
    "orders": gaussian.orders,
    "composition": composition.composition,
    "coverage": coverage.run,
    "networks": networks.networks,
    "federated": federated.federated,
    "generative": generative.generative,
}
