"""The GPUs of containers, for create and for those that run: what is asked and granted, and what comes and goes."""
