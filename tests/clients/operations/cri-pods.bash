### the runtime is ready
# says: containerd v1
# says: RuntimeReady 1
pod
cri Version -q runtime_name -q runtime_api_version
cri Status -q status.conditions.0.type -q status.conditions.0.status

### pod: run, status, list, stop, remove
# says: READY <name>
# says: NOTREADY
# says: 0
pod
cri PodSandboxStatus pod_sandbox_id=$POD -q status.state -q status.metadata.name
cri ListPodSandbox filter.id=$POD -q items.0.state -q items.0.metadata.namespace
cri StopPodSandbox pod_sandbox_id=$POD >/dev/null
cri PodSandboxStatus pod_sandbox_id=$POD -q status.state
cri RemovePodSandbox pod_sandbox_id=$POD >/dev/null
cri ListPodSandbox filter.id=$POD -q items
ctr containers ls -q | grep -c $POD || :

### pod: its handler
# says: right
pod
[[ $(cri PodSandboxStatus pod_sandbox_id=$POD -q status.runtime_handler) == "$DOCKER_RUNTIME" ]] && echo right

### pod: a handler that is not there
# says: .*no runtime for "other" is configured.*
pod
end
DOCKER_RUNTIME=other
fails 1 pod

### pod: one that is not there
# says: .*NotFound.*
pod
fails 1 cri PodSandboxStatus pod_sandbox_id=none 2>&1

### pod: hostname
# needs: cni
# says: stdout F h-1
NETWORK=POD
pod hostname=h-1
boot c -- hostname
exited
logs c

### pod: network by CNI, shared by its containers
# needs: cni
# says: 10.88.77.*
# says: stdout F hello
NETWORK=POD
pod
cri PodSandboxStatus pod_sandbox_id=$POD -q status.network.ip | sed 's/[0-9]*$/x/'
boot c -- sh -c "$WAITS"
in_ ip -o -4 addr show eth0 | grep -oF 10.88.77.
boot d -- sh -c 'while :; do echo hello | nc -l -p 99 >/dev/null; done & until nc -w 1 127.0.0.1 99 2>/dev/null | grep hello; do :; done'
exited
logs d

### pod: network by CNI is undone
# needs: cni
# says: 0
NETWORK=POD
pod
end
cri ListPodSandbox filter.id=$POD -q items | grep -c $POD || :
ls /var/run/netns 2>/dev/null | wc -l | awk '{print ($1 > 1)}'

### pod: sysctls
# says: stdout F 9000
pod linux.sysctls:='{"kernel.msgmax":"9000"}'
boot c -- cat /proc/sys/kernel/msgmax
exited
logs c

### pod: containers share its ipc and uts namespaces
# says: ipc same
# says: mnt other
up
first=$BOX
boot d -- sh -c "$WAITS"
for i in ipc mnt pid; do
  echo "$i $([[ $(in_ readlink /proc/self/ns/$i) == "$(cri ExecSync container_id=$first -- readlink /proc/self/ns/$i)" ]] && echo same || echo other)"
done

### pod: one pid namespace for all
# says: sleep 2147483647
# says: 1 seen by the other
PIDS=POD
pod
boot c -- sh -c "exec sleep 4242"
boot d -- sh -c "$WAITS"
in_ sh -c 'tr "\0" " " </proc/1/cmdline; echo; ps -o args | grep -c "^sleep [4]242"' | sed 's/^1$/& seen by the other/'

### pod: the host's pid namespace; its processes die with the container
# says: same
# says: 0
PIDS=NODE
pod
boot c -- sh -c "sleep 98765.$$ & $WAITS"
[[ $(in_ readlink /proc/self/ns/pid) == "$(readlink /proc/self/ns/pid)" ]] && echo same
until_ pgrep -f "^sleep 98765.$$"
stop 5
until_ eval "! pgrep -f '^sleep 98765.$$'"
pgrep -fc "^sleep 98765.$$" || :

### pod: a debug container in the pid namespace of another
# says: seen
up
boot d linux.security_context.namespace_options:='{"network":"NODE","pid":"TARGET","target_id":"'$BOX'"}' -- sh -c "ps -o args | grep -q '^sleep [1]000' && echo seen; sleep .2"
exited
logs d | cut -d' ' -f3

### pod: stopped with its containers in it
# says: EXITED 137.*
pod
boot c -- sleep 1000
cri StopPodSandbox pod_sandbox_id=$POD >/dev/null
status

### pod: removed with its containers in it
# says: .*NotFound.*
up
end
fails 1 status

### pod: its own process is killed
# says: NOTREADY
# says: RUNNING.*
pod
boot c -- sh -c "$WAITS"
kill -9 $(ctr tasks ls | awk -v c="$POD" '$1 == c { print $2 }')
notready
status

### pod: its shim is killed
# says: NOTREADY
# says: EXITED.*
# says: 0
# broken: containerd-2.1 only the pod's own container is deleted, the process of the other one stays
up
pid=$(pid)
kill -9 $(ps -o ppid= -p $pid)
notready
exited
status
end
find /sys/fs/cgroup -type d -name "*$BOX*" | wc -l

### 3 pods at once
# says: 3
for i in 1 2 3; do
  (C=$C.$i; pod && boot c -- sh -c 'echo hi' && exited && logs c && until_ end) &
done | grep -c "stdout F hi"
wait
