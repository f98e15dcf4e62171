"""Dumps of a run in, the rank or link at fault out. Pure Python: it runs where no torch is installed, and executes no dump."""
