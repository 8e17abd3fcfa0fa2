#!/bin/bash
# A stand-in for NVIDIA's nvidia-cuda-mps-control: a daemon with -f, else a client that hands its line over.  It serves no GPU.
log=@LOG@
if [[ $1 == -f ]]; then
  [[ ! -e $log.broken ]] || exit 3
  echo "begins CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" >>"$log"
  touch /dev/shm/of-the-daemon
  # In place of one that a killed daemon has left, at once: a client that came between would make a file of that name.
  rm -f "$CUDA_MPS_PIPE_DIRECTORY/control.new"
  mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control.new"
  exec 3<>"$CUDA_MPS_PIPE_DIRECTORY/control.new"
  mv -f "$CUDA_MPS_PIPE_DIRECTORY/control.new" "$CUDA_MPS_PIPE_DIRECTORY/control"
  echo $$ >"$log.pid"
  while read -r line <&3; do
    [[ $line == quit* ]] && { echo ends >>"$log"; rm -f "$CUDA_MPS_PIPE_DIRECTORY/control"; exit 0; }
  done
fi
[[ -p $CUDA_MPS_PIPE_DIRECTORY/control ]] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
read -r line
echo "$line" | timeout 5 dd of="$CUDA_MPS_PIPE_DIRECTORY/control" conv=nocreat,notrunc status=none
