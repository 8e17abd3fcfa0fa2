"""The caller's process, cloned: where the caller's side and what runs inside meet, only in a sealed interpreter."""
