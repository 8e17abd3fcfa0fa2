"""Capabilities, seccomp, LSM labels."""
