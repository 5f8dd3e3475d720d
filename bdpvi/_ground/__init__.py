"""Files, checks, progress and messages, without any statistics."""
