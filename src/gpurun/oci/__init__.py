"""The OCI documents: config, state, features."""
