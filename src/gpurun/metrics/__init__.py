"""What GPUs and containers do, for Prometheus."""
