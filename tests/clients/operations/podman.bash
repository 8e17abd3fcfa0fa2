# Podman's prelude.
cli() { podman --runtime "$BINARY" "$@"; }
remove() { cli rm -f -t 0 "$@"; }
# Without systemd there is no timer that runs the checks.
checked() {
  cli healthcheck run "$C" || :
  [[ $(podman inspect -f '{{if .State.Healthcheck}}{{.State.Healthcheck.Status}}{{else}}{{.State.Health.Status}}{{end}}' "$C") == "$1" ]]
}
healthy() { checked healthy; }
unhealthy() { checked unhealthy; }
# The cgroup that Podman 4 makes for the pod, without systemd, forbids all devices: see tests/beds/allow-devices.
devices_in_pod() { [[ -d /run/systemd/system ]] || "$BEDS/allow-devices" "/sys/fs/cgroup$(podman pod inspect -f '{{.CgroupPath}}' "$C")"; }
# kube FILE: a pod that is made, and started.
kube() { cli play kube --start=false "$@" >/dev/null && devices_in_pod && cli pod start "$C" >/dev/null; }
# Podman tells it when the container has ended.
oom_seen() { grep -q '^oom_kill 1$' "$(cgroup)/memory.events"; }
