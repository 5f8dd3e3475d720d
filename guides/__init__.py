"""Gaussian guides for any Pyro model with global latent variables."""
