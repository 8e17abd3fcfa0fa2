"""Dynamic resource allocation: the driver of a node's GPUs."""
