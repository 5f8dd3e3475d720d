"""Trains one guide by one plan of batches and base noise."""
