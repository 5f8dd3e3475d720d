"""Comparison and tuning of methods at equal ε, with the extra ``bdpvi[bench]``."""
