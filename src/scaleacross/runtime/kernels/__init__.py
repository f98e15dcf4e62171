"""Triton kernels for what a rank computes itself. Each equals a torch reference bit for bit.

On a CPU the references run; Triton's interpreter is for tests. Importing a module of this package needs triton.
"""
