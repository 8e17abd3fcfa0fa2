### containerd is killed and comes back: its tasks go on
# says: RUNNING
# says: the same process, the same shim
# says: hello
# says: exit code 42
# says: PAUSED
# says: 1
# says: again
containerd_
up
p=$(pid) shim=$(parent $p)
listening
crash containerd
! gone $p
containerd_
status
[[ $p == $(pid) && $shim == $(parent $p) ]] && echo the same process, the same shim
in_ echo hello
fails 42 in_ sh -c 'exit 42'
ctr tasks pause $C
status
ctr tasks resume $C
ctr tasks ps $C | tail -n +2 | awk 'NR == 1' | wc -l
ctr tasks kill $C
until_ stopped
ctr tasks rm $C
ctr containers rm $C
up
in_ echo again

### containerd is killed: a terminal after it
# says: 27 87
# says: code 7
containerd_
up
crash containerd
containerd_
terminal --size 27x87 -- ctr tasks exec -t --exec-id t $C sh -c 'until stty size 2>/dev/null | grep 27; do sleep .1; done; exit 7' || echo code $?

### containerd is killed: a task ends while it is away
# says: STOPPED
# says: .*exit code 3.*
# broken: containerd-2.1 drops such a task when it comes back
mine
mkfifo go
containerd_
run_ -d --mount type=bind,src=$PWD,dst=/v,options=rbind:rw -- sh -c 'read x </v/go; exit 3' >/dev/null
p=$(pid)
crash containerd
echo >go
until_ gone $p
containerd_
until_ stopped
status
ctr tasks rm $C 2>&1

### containerd is killed: a paused task is still paused
# says: PAUSED
# says: RUNNING
# says: hello
containerd_
up
ctr tasks pause $C
crash containerd
containerd_
status
ctr tasks resume $C
status
in_ echo hello

### containerd and a shim are killed: what they leave is cleaned up
# says: gone
# says: state kept: 0
# says: again
containerd_
up
p=$(pid) g=$(cgroup)
crash containerd
kill -KILL $(parent $p)
containerd_
until_ gone $p
until_ eval '[[ ! -e $g ]]'
echo gone
echo "state kept: $(ls -d /run/containerd/runc/default/$C 2>/dev/null | wc -l)"
ctr containers rm $C
up
in_ echo again

### the shim is killed: tasks delete
# says: gone
# says: again
up
p=$(pid) g=$(cgroup)
kill -KILL $(parent $p)
until_ gone $p
until_ eval '[[ ! -e $g ]]'
echo gone
ctr tasks delete $C >/dev/null 2>&1 || :
until_ eval '[[ -z $(status) ]]'
ctr containers delete $C
up
in_ echo again
