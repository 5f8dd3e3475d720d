"""Privacy accounting: from events to ε. It does not depend on how a guide was trained."""
