"""Runs a plan: reads launch.json and executes what it names. Needs the extra ``runtime``."""
