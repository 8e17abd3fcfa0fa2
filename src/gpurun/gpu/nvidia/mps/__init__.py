"""NVIDIA's MPS control daemon: started, given limits, watched and ended."""
