"""Requests that mean any GPU: data, before the host is looked at."""
