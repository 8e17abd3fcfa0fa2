"""NVIDIA's GPUs: its driver, its toolkit's variables and configuration, its CDI devices, its MPS."""
