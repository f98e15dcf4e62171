"""What a real network does to the rate that a link states: one effect per file, all pure and over arrays."""
