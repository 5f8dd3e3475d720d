"""Outputs that may be shared: charge, draw, store, summarise."""
