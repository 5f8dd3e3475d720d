"""Events in, ε out. Nothing here knows how a guide was trained."""
