### containerd is killed and comes back: pods and containers go on
# says: READY RUNNING
# says: the same process
# says: hello
# says: exit code 42
# says: EXITED 0 Completed
# says: stdout F said by another
# says: \[\]
containerd_
up
p=$(pid)
listening
crash containerd
! gone $p
containerd_
echo $(cri PodSandboxStatus pod_sandbox_id=$POD -q status.state) $(cri ContainerStatus container_id=$BOX -q status.state)
[[ $p == $(pid) ]] && echo the same process
in_ echo hello
fails 42 in_ sh -c 'exit 42'
stop 20
status
boot d -- echo said by another
exited
logs d
end
cri ListPodSandbox filter.id=$POD -q items

### containerd is killed: a container's output goes on in its log
# says: counted meanwhile
# says: EXITED 0 Completed
containerd_
pod
boot c -- sh -c 'trap "exit 0" TERM; i=0; while :; do i=$((i+1)); echo $i; sleep .1; done'
last() { tail -n 1 /run/t/$C/logs/c.log | cut -d' ' -f4; }
until_ eval '[[ $(last) -ge 3 ]]'
crash containerd
containerd_
n=$(last)
until_ eval '[[ $(last) -gt $n ]]'
cut -d' ' -f4 logs/c.log | awk '$1 != NR { wrong = $1 } END { if (!wrong && NR > 3) print "counted meanwhile" }'
stop 20
status

### containerd is killed: a container ends while it is away
# says: EXITED (3 Error|255 Unknown)
# says: EXITED (137 Error|255 Unknown)
# containerd 2 does not ask the shim any more how it was.
mine
mkfifo go
containerd_
pod
boot c mounts:='[{"container_path":"/v","host_path":"'$PWD'"}]' -- sh -c 'read x </v/go; exit 3'
first=$BOX p=$(pid)
boot k -- sleep 1000
k=$(pid)
crash containerd
echo >go
kill -KILL $k
until_ gone $p
until_ gone $k
containerd_
for BOX in $first $BOX; do exited; status; done

### containerd is killed: the pod's own process ends while it is away
# says: NOTREADY
# says: hello
# says: \[\]
containerd_
up
s=$(BOX=$POD && pid)
crash containerd
kill -KILL $s
until_ gone $s
containerd_
notready
in_ echo hello
end
cri ListPodSandbox filter.id=$POD -q items

### containerd is killed: created, and started after it
# says: CREATED 0
# says: EXITED 5 Error
containerd_
pod
box c -- sh -c 'exit 5'
crash containerd
containerd_
cri ContainerStatus container_id=$BOX -q status.state -q status.exit_code
start
exited
status

### containerd is killed: Exec with a terminal, Attach after it
# says: 27 87
# says: code 7
containerd_
up
crash containerd
containerd_
terminal --size 27x87 -- bash -c "cri Exec container_id=$BOX stdin:=true tty:=true stdout:=true -- sh -c 'until stty size 2>/dev/null | grep 27; do sleep .1; done; exit 7'" || echo code $?

### containerd and a pod's shim are killed: what they leave is cleaned up
# says: NOTREADY
# says: EXITED.*
# says: cgroups kept: 0
# says: stdout F again
containerd_
up
p=$(pid)
crash containerd
kill -KILL $(parent $p)
containerd_
notready
exited
status
until_ gone $p
end
until_ eval '[[ -z $(find /sys/fs/cgroup -type d -name "*$BOX*") ]]'
echo "cgroups kept: $(find /sys/fs/cgroup -type d -name "*$BOX*" | wc -l)"
pod metadata.attempt:=1
boot c -- echo again
exited
logs c
