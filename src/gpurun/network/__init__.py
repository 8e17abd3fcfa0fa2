"""A network for a container that no engine gives one."""
