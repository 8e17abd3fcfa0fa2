"""The caller's process, cloned: where the caller's side and what runs inside meet, in a sealed interpreter alone."""
