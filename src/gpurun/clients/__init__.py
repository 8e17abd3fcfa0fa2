"""The configuration files of Docker, containerd, Podman and CRI-O, and how gpurun is written into them."""
