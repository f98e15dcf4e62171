"""Measurements in, catalogue figures out, each with its error on rows that the fit has not seen."""
