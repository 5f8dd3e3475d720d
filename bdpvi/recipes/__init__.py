"""Settings that stand before any record is seen, and what is done with a table by them."""
