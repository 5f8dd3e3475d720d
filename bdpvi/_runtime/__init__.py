"""Plumbing that knows no statistics: progress, threads, workers, files, secure randomness."""
