"""Stand-ins for the programs with which NVIDIA's MPS is controlled; nothing here needs the packages of a cluster."""

from __future__ import annotations

from pathlib import Path

CONTROL = """#!/bin/bash
# A stand-in for NVIDIA's: a daemon with -f, else a client that hands its line over.
echo "$* CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" >>{log}
if [[ $1 == -f ]]; then
  touch /dev/shm/of-the-daemon
  # In place of one that a killed daemon has left, at once: a client that came between would make a file of that name.
  rm -f "$CUDA_MPS_PIPE_DIRECTORY/control.new"
  mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control.new"
  exec 3<>"$CUDA_MPS_PIPE_DIRECTORY/control.new"
  mv -f "$CUDA_MPS_PIPE_DIRECTORY/control.new" "$CUDA_MPS_PIPE_DIRECTORY/control" && echo $$ >{log}.pid
  while read -r line <&3; do
    echo "$line" >>{log}
    [[ $line == quit* ]] && exit 0
  done
fi
[[ -p $CUDA_MPS_PIPE_DIRECTORY/control ]] || {{ echo "Cannot find MPS control daemon process" >&2; exit 1; }}
read -r line
echo "$line" | timeout 5 dd of="$CUDA_MPS_PIPE_DIRECTORY/control" conv=nocreat,notrunc status=none
"""


def mps_programs(directory: Path) -> tuple[str, Path]:
    """A directory with stand-ins for NVIDIA's programs, and the file in which they say what they were told."""
    log = directory / "mps.log"
    programs = directory / "bin"
    programs.mkdir()
    for name, text in (
        ("nvidia-cuda-mps-control", CONTROL.format(log=log)),
        ("nvidia-smi", f'#!/bin/sh\necho "smi $*" >>{log}\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return f"{programs}:/usr/bin:/bin", log
