"""Harness for tests that run real containers on this machine's own kernel."""
