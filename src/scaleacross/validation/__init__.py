"""Compare predictions with measured runs: a CSV of runs in, errors per group out.

No code here reads a measured value before its prediction is made.
"""
