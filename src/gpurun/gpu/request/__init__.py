"""What a container asks for and what the site allows: data, before anything of the host is looked at."""
