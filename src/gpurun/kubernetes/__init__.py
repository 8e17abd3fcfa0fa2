"""GPUs on a Kubernetes node: device plugin, DRA driver, node labels; what all of them share is in this folder."""
