"""``python -m tests.simdriver DIR --gpus N ...``: make a simulated driver and say how to use it."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import VERSION, Options, make
from .layouts import LAYOUTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simdriver", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gpus", type=int, default=2, help="number of GPUs (2)")
    parser.add_argument("--version", default=VERSION, help=f"driver version ({VERSION})")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="debian", help="where the libraries lie (debian)")
    parser.add_argument("--machine", choices=("x86_64", "aarch64"), help="architecture of the libraries (this machine's)")
    flags = ("no-userspace", "no-module", "no-uvm", "version-mismatch", "mps", "extras")
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    chosen = {flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in flags}
    if args.machine:
        chosen["machine"] = args.machine
    made = make(args.directory, Options(gpus=args.gpus, version=args.version, layout=args.layout, **chosen))
    if not made.real_nodes:
        print("note: no device nodes were made, that needs root")
    print(f"export GPURUN_SYSROOT={made.path.absolute()}")


if __name__ == "__main__":
    main()
