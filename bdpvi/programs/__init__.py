"""Any Pyro model, trained by noisy gradients of single records."""
