"""gpurun: an OCI container runtime with the GPU built in."""

__version__ = "0.1.0"
