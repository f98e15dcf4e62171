"""The step graph: which computation, collective and message of a training step waits for which."""
