"""CRIU, which saves and restores processes: the conversation with it.  Knows no containers."""
