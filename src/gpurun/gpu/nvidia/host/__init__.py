"""What the host has of NVIDIA's: driver, GPUs, libraries, device nodes; nothing of containers."""
