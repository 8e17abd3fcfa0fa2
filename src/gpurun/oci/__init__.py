"""The OCI documents: config, state, features."""

#: The version of the OCI runtime specification that gpurun follows.
SPEC_VERSION = "1.3.0"
