"""How far one record moves the posterior."""
