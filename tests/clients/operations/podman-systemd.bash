### quadlet: a unit with its container, its limits in the unit's own tree
# needs: systemd memory pids
# says: active
# says: .*/system.slice/<name>.service/libpod-payload-<id>
# says: 67108864
# says: 20
# says: hello
# says: inactive
# says: ended
mine
cat >$C.container <<UNIT
[Container]
ContainerName=$C
Image=$IMAGE
Pull=never
Network=none
GlobalArgs=--runtime $BINARY
PodmanArgs=--memory 64m --pids-limit 20
Exec=sh -c "trap 'exit 0' TERM; sleep 1000 & wait"
UNIT
made=/run/systemd/system/$C.service
trap 'systemctl stop $C || :; rm -f $made; finish' EXIT
# What systemd does with it at each daemon-reload: the guest has no generators.
QUADLET_UNIT_DIRS=$PWD /usr/libexec/podman/quadlet /run/systemd/system
systemctl daemon-reload
systemctl start $C
systemctl is-active $C
cgroup
cat $(cgroup)/memory.max $(cgroup)/pids.max
in_ echo hello
listening
systemctl stop $C
systemctl is-active $C || :
cli container exists $C || echo ended
