"""Finds the rank or link at fault in the flight-recorder dumps of a run. It needs no torch and executes no dump."""
