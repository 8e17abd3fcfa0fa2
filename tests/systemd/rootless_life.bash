# The life of a container with limits under an engine without root, as lines. `cli` is the engine with the runtime (the
# preludes of tests/clients/operations), C the container, IMAGE its image, PATIENCE the seconds to wait for one thing.
limits() {
  local file
  for file in memory.max memory.swap.max memory.low cpu.max cpu.weight pids.max cpuset.cpus; do
    echo "$1: $file $(<"$LIMITED/$file")"
  done
}
pressure='cd /sys/fs/cgroup; for f in cpu memory io; do cut -d" " -f1 $f.pressure; done'

run -d -m 64m --memory-swap 64m --memory-reservation 32m --cpus 0.5 --cpu-shares 512 --cpuset-cpus 0 --pids-limit 20 \
  "$IMAGE" sleep 1000 >/dev/null
OWN=$(cgroup)
LIMITED=${OWN%/container}  # crun puts the processes one below, with systemd
case $LIMITED in
  */"user@$UID.service/user.slice/"*.scope) echo "place: a scope of the user's" ;;
  */"user@$UID.service/user.slice/"*) echo "place: a cgroup of the user's" ;;
  *) echo "place: $LIMITED" ;;
esac
limits made
echo pressure: $(in_ sh -c "$pressure")
cli stats --no-stream --format 'stats: {{.PIDs}} {{.MemUsage}}' "$C" | sed -E 's,[0-9.]+[kMK]?i?B /,<used> /,'
in_ sh -c 'for i in $(seq 30); do sleep 1000 & done' 2>&1 || :
cli update --memory 96m --memory-swap 96m --cpus 0.25 --pids-limit 33 "$C" >/dev/null
limits updated
cli pause "$C" >/dev/null
grep frozen "$OWN/cgroup.events"
cli unpause "$C" >/dev/null
grep frozen "$OWN/cgroup.events"
fails 137 in_ tail -c 200m /dev/zero
grep '^oom_kill ' "$LIMITED/memory.events"
remove "$C" >/dev/null 2>&1  # gpurun warns of what the kernel has killed, where the cgroup is still there to say so
until_ eval '[[ ! -e $LIMITED ]]'

# The engine looks when the first process has ended, or is told of a change: a scope that is empty then may be gone. So
# another process goes over the limit, and a third one outlives the first.
run -d --pid host -m 32m --memory-swap 32m "$IMAGE" sh -c '
  sleep 1000 & until test -e /go; do sleep .1; done; tail -c 100m /dev/zero; rc=$?; until test -e /end; do sleep .1; done; exit $rc' >/dev/null
in_ touch /go
until_ oom_seen
in_ touch /end
cli wait "$C" >/dev/null
cli inspect -f 'out of memory: {{.State.OOMKilled}} {{.State.ExitCode}}' "$C"
