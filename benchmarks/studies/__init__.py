"""Reproductions of published figures, and studies of the estimators' validity."""
