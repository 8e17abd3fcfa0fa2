"""Namespaces, mounts, root file system, paths inside a container."""
