"""What a Pyro model must offer, and logistic regression."""
