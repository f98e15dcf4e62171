"""Triton kernels for what a rank computes itself: each beside the torch reference that it equals bit for bit.

Tensors of a CPU take the references in torch; Triton's interpreter is for tests. Importing a module of this package needs triton.
"""
