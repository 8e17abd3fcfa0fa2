"""The Container Device Interface, of any vendor's devices: knows no NVIDIA."""
