"""Emulated buildings on one Linux host: network namespaces, shaped links, real training processes; measured beside predicted."""
