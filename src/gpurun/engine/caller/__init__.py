"""What runs on the host, with the privileges of whoever called gpurun."""
