"""Images as files: from an OCI layout, a docker-save archive, a tarball or a directory to a bundle.  Fetches nothing."""
