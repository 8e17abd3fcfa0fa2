"""NVIDIA's GPUs: what a container asks for x what the host has → container edits."""
