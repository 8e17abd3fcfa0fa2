"""gpurun: an OCI container runtime with the GPU built in.

As a library it is :class:`Bundle`, :class:`Container`, :func:`gpus` and what these raise and return (docs/library.md).  They
are imported when they are first asked for: the commands that engines call import this file too, and none of those.
"""

__version__ = "0.1.0"

#: The names of the library, and the module that each is in; ``__init__.pyi`` tells type checkers the same.
_LIBRARY = {
    "Bundle": "gpurun.library.bundle",
    "ConfigError": "gpurun.errors",
    "Container": "gpurun.library.container",
    "ContainerNotFound": "gpurun.errors",
    "Gpu": "gpurun.gpu.nvidia.host.gpus",
    "GpuError": "gpurun.errors",
    "GpurunError": "gpurun.errors",
    "Plan": "gpurun.engine.plan.container",
    "Problem": "gpurun.oci.schema",
    "Stats": "gpurun.library.stats",
    "gpus": "gpurun.library.host",
}
__all__ = tuple(_LIBRARY)


def __getattr__(name: str) -> object:
    """PEP 562: a name of the library, at its first use."""
    if name not in _LIBRARY:
        raise AttributeError(f"module 'gpurun' has no attribute {name!r}")
    return getattr(__import__(_LIBRARY[name], fromlist=(name,)), name)
