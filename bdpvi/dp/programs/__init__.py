"""Pyro programs, a model and a guide, run one record at a time."""
