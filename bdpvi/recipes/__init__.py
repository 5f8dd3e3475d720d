"""Settings fixed before any record is seen, and the processing of a table by them."""
