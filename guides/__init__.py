"""Gaussian guides for any Pyro model with global latent variables."""

from bdpvi.guides.converted import of
from bdpvi.guides.full_rank import FullRank
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.guides.laplace import Laplace
from bdpvi.guides.low_rank import LowRank
from bdpvi.guides.mean_field import MeanField

__all__ = ["FullRank", "GaussianGuide", "Laplace", "LowRank", "MeanField", "of"]
