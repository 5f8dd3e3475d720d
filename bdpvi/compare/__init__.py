"""Methods at equal ε."""
