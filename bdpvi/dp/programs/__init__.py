"""A Pyro model and guide, run one record at a time and trained by noisy gradients."""
