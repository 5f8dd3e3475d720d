"""Private variational inference on Pyro, accounted by Bayesian differential privacy."""

from bdpvi.types import Dataset, Split

__all__ = ["Dataset", "Split"]
