"""Releases: charge, draw, store."""
