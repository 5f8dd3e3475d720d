"""Keys, and the noise that they determine, on public lattices."""
