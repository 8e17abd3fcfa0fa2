"""What a container asks for in NVIDIA's words and what the site allows: data, before the host is looked at."""
