"""Cost of embedding tables: every way to place one, in seconds and bytes per rank, by our laws or TorchRec's."""
