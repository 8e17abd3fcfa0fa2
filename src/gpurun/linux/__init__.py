"""System calls and kernel constants under the kernel's own names; knows no OCI."""
