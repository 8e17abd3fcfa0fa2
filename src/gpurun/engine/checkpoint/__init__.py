"""A container saved to files by CRIU, and made again from them."""
