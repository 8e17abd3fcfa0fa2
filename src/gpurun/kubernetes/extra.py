"""The libraries of ``gpurun[kubernetes]``: found also from the built file, and one sentence where they are not installed."""

from __future__ import annotations

import gc
import importlib
import os
import site
import sys

from gpurun.errors import GpurunError

#: Module → (package of the Python index, package of Debian).
PACKAGES = {
    "grpc": ("grpcio", "python3-grpcio"),
    "google.protobuf": ("protobuf", "python3-protobuf"),
    "kubernetes": ("kubernetes", "python3-kubernetes"),
    "prometheus_client": ("prometheus-client", "python3-prometheus-client"),
    "pydantic": ("pydantic", "python3-pydantic"),
}
#: Module → the first version that will do, where an older one is in use: Debian 12 has pydantic 1.
SINCE = {"pydantic": 2}


def need(*modules: str) -> None:
    """Make *modules* (of :data:`PACKAGES`) ready to import.  Raises :class:`GpurunError` naming what to install.

    The built file runs without site-packages, for speed; here they are looked for after all, in the virtual environment
    that the file is installed in, else in the system's.
    """
    # Before gRPC is imported: it would start threads of its own in a copy of this process, and one that reads a driver's
    # files (gpu/host/driver_reads.py) would sometimes die without an answer.  No copy of ours uses gRPC.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    missing = _missing(modules)
    if missing and sys.flags.no_site and getattr(sys, "gpurun_bundle", None) is not None:
        _add_site_packages()
        missing = _missing(modules)
    if missing:
        pip, debian = zip(*[PACKAGES[name] for name in missing], strict=True)
        raise GpurunError(
            f"{' and '.join(pip)} {'is' if len(pip) == 1 else 'are'} not installed: `apt-get install {' '.join(debian)}`, "
            "or install gpurun with its extra `kubernetes`"
        )
    gc.enable()  # the launcher turns it off for commands that live for milliseconds


def _missing(modules: tuple[str, ...]) -> list[str]:
    """Those of *modules* that are not there.  What is there and cannot be imported is reported by Python's own error."""
    found = []
    for name in modules:
        try:
            version = str(getattr(importlib.import_module(name), "__version__", ""))
            if name in SINCE and int(version.partition(".")[0]) < SINCE[name]:
                raise GpurunError(
                    f"{PACKAGES[name][0]} {version} is installed, and version {SINCE[name]} or newer is needed: Debian 13 "
                    f"has it as {PACKAGES[name][1]}; elsewhere install gpurun with pip and its extra `kubernetes`"
                )
        except ModuleNotFoundError as e:
            for key in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
                del sys.modules[key]
            if e.name is None or not name.startswith(e.name):
                raise GpurunError(f"{PACKAGES[name][0]} is installed, but not {e.name}, which it needs") from None
            found.append(name)
        except ImportError as e:
            raise GpurunError(f"{PACKAGES[name][0]} is installed and cannot be used: {e}") from None
    return found


def _add_site_packages() -> None:
    own = os.path.realpath(sys.argv[0])
    environment = os.path.dirname(os.path.dirname(own))
    if os.path.exists(f"{environment}/pyvenv.cfg"):
        site.addsitedir(f"{environment}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    else:
        site.main()
