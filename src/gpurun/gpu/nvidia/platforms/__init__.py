"""Hosts whose GPU is no PCI card under NVIDIA's driver for Linux: WSL 2 and Tegra."""
