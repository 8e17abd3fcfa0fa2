"""Shows, from inside the container, what it is and what it may use."""

import ctypes
import errno
import glob
import os
import stat

CGROUP = "/sys/fs/cgroup"
PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd")  # of all makers


def limit(name: str) -> str:
    """The cgroup's own word on a limit."""
    try:
        with open(f"{CGROUP}/{name}") as f:
            value = f.read().strip()
    except FileNotFoundError:
        return "none (the host's cgroup v2 lacks the controller)"
    return f"{int(value) >> 20} MiB" if name == "memory.max" and value.isdigit() else value


def access(path: str) -> str:
    """Whether the device cgroup lets us open *path*; ENXIO and EIO mean: allowed, but no such hardware."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as e:
        if e.errno in (errno.ENXIO, errno.EIO, errno.ENODEV):
            return "allowed (no hardware behind it)"
        return f"denied ({e.strerror})" if e.errno == errno.EPERM else f"cannot be opened ({e.strerror})"
    return "allowed"


def driver_call(library: str, function: str, *arguments: int) -> str:
    """Load *library* by its SONAME, as programs do, and make the first call that every program makes."""
    try:
        loaded = ctypes.CDLL(library)
    except OSError as e:
        return f"cannot be loaded: {e}"
    return f"loaded, {function} = {getattr(loaded, function)(*arguments)}"


def main() -> None:
    print(f"  hostname   {os.uname().nodename}")
    print(f"  pid        {os.getpid()}")
    print(f"  memory     {limit('memory.max')}")
    print(f"  cpu        {limit('cpu.max')}")
    print(f"  groups     {' '.join(str(gid) for gid in sorted(os.getgroups())) or 'none'}")
    for name in ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "GPURUN_VISIBLE_DEVICES"):
        if name in os.environ:
            print(f"  variable   {name}={os.environ[name]}")
    nodes = [path for pattern in PATTERNS for path in sorted(glob.glob(pattern))]
    nodes = [path for path in nodes if stat.S_ISCHR(os.stat(path).st_mode)]
    print("  devices" + ("" if nodes else "    none"))
    for path in nodes:
        device = os.stat(path).st_rdev
        number = f"{os.major(device)}:{os.minor(device)}"
        print(f"    {path:22} {number:8} {access(path)}")
    if "NVIDIA_VISIBLE_DEVICES" not in os.environ:  # other makers' libraries are of the image
        return
    print("  driver")
    for library, function, *arguments in (("libcuda.so.1", "cuInit", 0), ("libnvidia-ml.so.1", "nvmlInit_v2")):
        print(f"    {library:22} {driver_call(library, function, *arguments)}")


main()
