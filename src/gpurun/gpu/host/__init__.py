"""How the host is read, whoever made its GPUs."""
