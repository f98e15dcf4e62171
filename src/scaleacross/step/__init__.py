"""What a training step means: which computation, collective and message waits for which, written once."""
