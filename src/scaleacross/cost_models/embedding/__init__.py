"""What embedding tables cost: every way to place one, in seconds and bytes per rank, by our laws or by TorchRec's estimator."""
