"""Requirements on Pyro models, and the library's regression models."""
