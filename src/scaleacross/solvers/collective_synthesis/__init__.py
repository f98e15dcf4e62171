"""Parts of ``synthesize_collective``: the network as lanes, bounds, a list scheduler and the CP-SAT model."""
