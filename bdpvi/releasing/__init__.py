"""Charge, draw, keep."""
