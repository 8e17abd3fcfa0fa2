"""The programs of NVIDIA's container toolkit under their own names: gpurun is called as they are, and does what they do."""
