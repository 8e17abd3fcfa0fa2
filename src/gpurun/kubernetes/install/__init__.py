"""gpurun put on a node by a pod: the program copied, registered with the container engine, and all of it undone."""
