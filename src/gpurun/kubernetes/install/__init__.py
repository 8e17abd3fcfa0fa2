"""gpurun put on a node by a pod: the program copied, the container engine told of it, and all of it taken back."""
