"""Infrastructure without statistics: progress, threads, workers, files, secure randomness."""
