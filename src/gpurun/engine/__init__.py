"""Plan, create, init, hooks, state: the life of a container."""
