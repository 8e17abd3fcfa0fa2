### limits of a container
# short
# needs: memory cpu pids
# says: memory 67108864
# says: cpu 50000 100000
# says: weight .*
pod
boot c linux.resources:='{"memory_limit_in_bytes":67108864,"cpu_quota":50000,"cpu_period":100000,"cpu_shares":512,"oom_score_adj":100}' -- sh -c "$WAITS"
for f in memory.max cpu.max cpu.weight; do echo "${f%.max} $(cat "$(cgroup)/$f")" | sed 's/cpu.weight/weight/'; done

### limits: cpuset
# needs: cpuset
# says: 0
pod
boot c linux.resources.cpuset_cpus=0 -- sh -c "$WAITS"
cat $(cgroup)/cpuset.cpus

### limits: cgroup v2 values as they are
# needs: memory
# says: 33554432
pod
boot c linux.resources:='{"memory_limit_in_bytes":67108864,"unified":{"memory.high":"33554432"}}' -- sh -c "$WAITS"
cat $(cgroup)/memory.high

### out of memory
# needs: memory
# says: OOMKilled
# says: EXITED 137 OOMKilled
# says: /tasks/oom
mine
ctr events >events &
trap "kill $!; finish" EXIT
listened() { ctr namespaces label "$CONTAINERD_NAMESPACE" asked=$RANDOM && [[ -s events ]]; }
until_ listened
pod
boot c linux.resources:='{"memory_limit_in_bytes":33554432,"memory_swap_limit_in_bytes":33554432}' -- sh -c '
  until test -e /go; do sleep .1; done; tail -c 100m /dev/zero; rc=$?; until test -e /end; do sleep .1; done; exit $rc'
# Who goes over the limit is not the first process: a scope that ends at once is gone before the shim has read the counter.
touch /proc/$(pid)/root/go
cri ContainerStatus container_id=$BOX --until status.reason=OOMKilled -q status.reason
touch /proc/$(pid)/root/end
exited
status
until_ grep "/tasks/oom.*$BOX" events
grep "/tasks/oom.*$BOX" events | grep -o /tasks/oom | sort -u

### UpdateContainerResources
# needs: memory cpu
# says: memory 50331648
# says: cpu 25000 100000
# says: written
up
cri UpdateContainerResources container_id=$BOX linux:='{"memory_limit_in_bytes":50331648,"cpu_quota":25000,"cpu_period":100000}' >/dev/null
for f in memory cpu; do echo "$f $(cat "$(cgroup)/$f.max")"; done
in_ sh -c 'echo x >/dev/null && echo written'

### UpdateContainerResources: kills what goes over the new limit
# needs: memory
# says: EXITED 137 OOMKilled
pod
boot c linux.resources:='{"memory_limit_in_bytes":134217728,"memory_swap_limit_in_bytes":134217728}' -- sh -c '
  until test -e /go; do sleep .1; done; tail -c 60m /dev/zero; rc=$?; until test -e /end; do sleep .1; done; exit $rc'
cri UpdateContainerResources container_id=$BOX linux:='{"memory_limit_in_bytes":33554432,"memory_swap_limit_in_bytes":33554432}' >/dev/null
touch /proc/$(pid)/root/go
cri ContainerStatus container_id=$BOX --until status.reason=OOMKilled >/dev/null
touch /proc/$(pid)/root/end
exited
status

### UpdateContainerResources: before it is started
# needs: memory
# says: 50331648
pod
box c -- sh -c "$WAITS"
cri UpdateContainerResources container_id=$BOX linux:='{"memory_limit_in_bytes":50331648}' >/dev/null
start
cat $(cgroup)/memory.max

### ContainerStats
# needs: memory pids
# says: cpu memory
pod
boot c -- sh -c 'for i in $(seq 20000); do :; done; sleep 1000'
counted() {
  read -r cpu memory < <(cri ContainerStats container_id=$BOX -q stats.cpu.usage_core_nano_seconds.value -q stats.memory.working_set_bytes.value)
  ((cpu > 0 && memory > 0))
}
until_ counted
echo "${cpu:+cpu} ${memory:+memory}"

### PodSandboxStats
# needs: memory pids
# says: cpu memory 1
up
counted() {
  read -r cpu memory containers < <(cri PodSandboxStats pod_sandbox_id=$POD -q stats.linux.cpu.usage_core_nano_seconds.value \
    -q stats.linux.memory.usage_bytes.value -q stats.linux.containers.0.cpu.usage_core_nano_seconds.value)
  ((cpu > 0 && memory > 0 && containers > 0))
}
until_ counted
echo "${cpu:+cpu} ${memory:+memory} ${containers:+1}"

### its place in systemd's tree
# needs: systemd
# says: /sys/fs/cgroup/cri.slice/cri-containerd-<id>.scope
# says: active
# says: inactive
up
cgroup
unit=cri-containerd-$BOX.scope
systemctl is-active $unit
stop 10
until_ eval '! systemctl is-active $unit'
systemctl is-active $unit || :
