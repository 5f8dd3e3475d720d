"""Training whose noise is the privacy."""
