"""The mode's own Gaussian: the mode, its curvature, and how far records move both."""
