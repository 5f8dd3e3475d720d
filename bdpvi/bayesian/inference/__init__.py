"""One guide, trained by one plan of batches and base noise."""
