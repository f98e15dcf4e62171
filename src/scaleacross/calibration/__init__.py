"""Fit catalogue figures to measurements; each fit comes with its error on rows that it has not seen."""
