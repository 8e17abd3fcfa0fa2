"""The chart's manifests without helm: its templates rendered by this program, from the same files; all of it pure."""
