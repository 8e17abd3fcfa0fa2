"""GPUs divided by MIG as a configuration file of NVIDIA's mig-parted says: files, plans, and the changes themselves."""
