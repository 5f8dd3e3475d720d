"""The published figures redone, and when estimators hold."""
