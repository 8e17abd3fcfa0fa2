"""NVIDIA's devices as CDI: written, named, and NVIDIA's CDI hooks done without running them."""
