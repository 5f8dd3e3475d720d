"""The Bayesian accountant: from the losses of reference records to ε."""
