"""Networks in private training by DP-SGD: they need neither Pyro nor a model."""
