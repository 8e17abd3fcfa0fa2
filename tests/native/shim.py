"""A stand-in for containerd's shim: it watches a cgroup for its memory running out, and calls the runtime to delete it.

    python3 shim.py CGROUP CHANGES TOLD COMMAND...

As the shim's, its reader has an inotify(7) watch on memory.events and on CHANGES (cgroup.events of a cgroup), reads
memory.events when it is woken, and ends when nothing runs in the cgroup any more.  What it reads goes into the file TOLD,
a line each; ``lost`` is one when there was nothing left to read.  COMMAND starts when a line comes on standard input, also
while the shim itself is stopped; its exit code is the shim's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

IN_MODIFY = 2
#: Starts the rest of its words when it is told to.
WAITER = 'read line; exec "$@"'


def watch(*files: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_CLOEXEC)
    for file in files:
        if libc.inotify_add_watch(fd, os.fsencode(file), IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "cannot watch", file)
    return fd


def value(file: str, key: str) -> int:
    """What the cgroup's *file* says of *key*; raises FileNotFoundError where there is no such thing."""
    with open(file) as opened:
        for line in opened:
            name, _, number = line.partition(" ")
            if name == key:
                return int(number)
    raise FileNotFoundError(file)


def read(fd: int, cgroup: str, told: str) -> None:
    with open(told, "a", buffering=1) as out:
        while True:
            os.read(fd, 4096)
            try:
                print(f"oom_kill {value(f'{cgroup}/memory.events', 'oom_kill')}", file=out)
                if value(f"{cgroup}/cgroup.events", "populated") == 0:
                    break
            except OSError:  # the cgroup is gone: ENOENT, and ENODEV where that happened between open and read
                print("lost", file=out)
                break
    os.close(fd)


def main() -> int:
    cgroup, changes, told, *command = sys.argv[1:]
    reader = threading.Thread(target=read, args=(watch(f"{cgroup}/memory.events", changes), cgroup, told))
    process = subprocess.Popen(["sh", "-c", WAITER, "sh", *command])
    reader.start()
    print("watches", flush=True)
    code = process.wait()
    reader.join()
    return code


if __name__ == "__main__":
    sys.exit(main())
