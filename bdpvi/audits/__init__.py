"""Audits: how much a release gives away, measured from two tables that differ in one record."""
