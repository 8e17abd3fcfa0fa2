"""Request x host → container edits, each with its reason."""
