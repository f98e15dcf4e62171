"""Simulation of training, event by event, on links shared max-min fairly. It never imports ``cost_models``."""
