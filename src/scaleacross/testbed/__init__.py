"""Emulated buildings on one Linux host: network namespaces, shaped links and real training processes."""
