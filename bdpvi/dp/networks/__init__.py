"""Private training of torch networks by DP-SGD, without Pyro or a model."""
