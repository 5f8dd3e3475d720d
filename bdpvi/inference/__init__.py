"""One guide trained by one plan."""
