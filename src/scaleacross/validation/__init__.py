"""Predictions held against measured runs: a CSV of runs in, errors per group out. Nothing here sees a measured value
before its prediction is made."""
