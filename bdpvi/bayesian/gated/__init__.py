"""Draws of a posterior in the worst case: a gate lets them out where every direction is curved."""
