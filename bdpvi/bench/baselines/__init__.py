"""Other methods that the comparison runs: DPVI-MA and noisy gradient descent."""
