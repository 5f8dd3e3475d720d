"""MNIST on 100 clients: a Flower app with client-level differential privacy."""
