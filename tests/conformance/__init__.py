"""One test for each MUST and SHOULD of the OCI runtime specification 1.3 that a runtime for Linux can be held to."""
