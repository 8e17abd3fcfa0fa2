"""What runs in the container's namespaces, between the interpreter's start and execve(2)."""
