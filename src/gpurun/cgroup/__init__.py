"""cgroup v2: the tree, resources, the device program."""
