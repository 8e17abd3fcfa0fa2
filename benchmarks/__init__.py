"""``make bench``: what gpurun costs beside the other runtimes of this machine; see :mod:`benchmarks.__main__`."""
