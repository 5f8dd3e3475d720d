"""The Laplace route: the posterior mode, its curvature, and how far records move both."""
