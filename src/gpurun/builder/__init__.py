"""Building the one-file launcher and its compiled front; nothing of it runs with containers."""
