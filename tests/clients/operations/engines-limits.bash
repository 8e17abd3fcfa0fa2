### -m
# says: 67108864
# says: 0
# needs: memory
up -m 64m --memory-swap 64m
cat $(cgroup)/memory.max $(cgroup)/memory.swap.max
in_ cat /sys/fs/cgroup/memory.max

### --memory-reservation
# says: 33554432
# needs: memory
up -m 64m --memory-reservation 32m
cat $(cgroup)/memory.low

### -m: out of memory
# short
# says: exit code 137
# needs: memory
fails 137 run -m 32m --memory-swap 32m $IMAGE dd if=/dev/zero of=/dev/null bs=100M

### -m: out of memory is told
# says: true 137
# needs: memory
# Conmon looks at the counter when the first process has ended, containerd's shim when it is told of a change: a scope that is
# empty then may be gone. So another process goes over the limit, and a third one outlives the first.
run -d --pid host -m 32m --memory-swap 32m $IMAGE sh -c '
  sleep 1000 & until test -e /go; do sleep .1; done; tail -c 100m /dev/zero; rc=$?; until test -e /end; do sleep .1; done; exit $rc' >/dev/null
touch /proc/$(pid)/root/go
until_ oom_seen
touch /proc/$(pid)/root/end
cli wait $C >/dev/null
cli inspect -f '{{.State.OOMKilled}} {{.State.ExitCode}}' $C

### --pids-limit
# says: 20
# says: 1
# needs: pids
up --pids-limit 20
cat $(cgroup)/pids.max
{ in_ sh -c 'for i in $(seq 30); do sleep 5 & done' 2>&1 || :; } | grep -c "can't fork"

### --cpus
# says: 50000 100000
# needs: cpu
up --cpus 0.5
cat $(cgroup)/cpu.max

### --cpu-shares
# needs: cpu
up --cpu-shares 512
cat $(cgroup)/cpu.weight

### --cpuset-cpus
# says: 0
# needs: cpuset
up --cpuset-cpus 0
cat $(cgroup)/cpuset.cpus
in_ grep Cpus_allowed_list /proc/self/status

### --blkio-weight
# needs: io
up --blkio-weight 300
{ cat $(cgroup)/io.weight $(cgroup)/io.bfq.weight 2>&1 || :; } | sed 's,/sys.*:,:,'

### update --memory
# says: 100663296
# needs: memory
up -m 64m --memory-swap 64m
cli update --memory 96m --memory-swap 96m $C >/dev/null
cat $(cgroup)/memory.max
cli inspect -f '{{.HostConfig.Memory}}' $C

### update --cpus, --pids-limit
# says: 25000 100000
# says: 33
# needs: cpu pids
up --cpus 0.5
cli update --cpus 0.25 --pids-limit 33 $C >/dev/null
cat $(cgroup)/cpu.max $(cgroup)/pids.max

### update: devices are as they were
# says: .*No such device or address
# says: zero
# needs: cpu
up --device-cgroup-rule 'c 195:0 rw' --cap-add MKNOD
in_ mknod /root/a c 195 0
cli update --cpus 0.5 $C >/dev/null
in_ sh -c '(: <>/root/a) 2>&1; (: </dev/zero) && echo zero' || :

### stats
# says: <name> 2 <used> / (64MiB|67.11MB)
# needs: memory pids
up -m 64m
cli stats --no-stream --format '{{.Name}} {{.PIDs}} {{.MemUsage}}' $C | sed -E 's,[0-9.]+[kMK]i?B /,<used> /,'

### the scope is systemd's
# says: scope
# says: active
# says: inactive
# needs: systemd
up
[[ $(cgroup) == *.scope ]] && echo scope
u=$(basename $(cgroup))
systemctl show -P ActiveState $u
cli rm -f $C >/dev/null
until_ eval '[[ ! -e /run/systemd/transient/$u ]]'
systemctl show -P ActiveState $u

### devices outlive a daemon-reload
# says: .*No such device or address
# says: .*Operation not permitted
# needs: systemd
up --device-cgroup-rule 'c 195:0 rw' --cap-add MKNOD
in_ mknod /root/a c 195 0
in_ mknod /root/b c 195 1
for i in 1 2; do systemctl daemon-reload; in_ sh -c 'for f in a b; do (: <>/root/$f) 2>&1; done'; done || :
