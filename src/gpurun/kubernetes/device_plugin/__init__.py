"""The kubelet's device plugin API, served for the GPUs of a node."""
