### run -w: a directory that is not there
# says: /made/here
run --rm -w /made/here $IMAGE pwd

### events of a life
# says: create
# says: die 3
# says: destroy
t=$(date +%s.%N)
run --rm $IMAGE sh -c 'exit 3' || :
docker events --since $t --until $(date +%s.%N) --filter container=$C --format '{{.Action}} {{index .Actor.Attributes "exitCode"}}' | sed 's/ $//' | grep -v attach

### the shim is killed: what it leaves is cleaned up
# says: exited
# says: again
# guest
up
p=$(pid) g=$(cgroup)
s=$(awk '$1 == "PPid:" { print $2 }' /proc/$p/status)
kill -KILL $s
until_ eval '[[ ! -e /proc/$p && ! -e $g ]]'
until_ eval '[[ $(cli inspect -f "{{.State.Running}}" $C) == false ]]'
cli inspect -f '{{.State.Status}}' $C
cli start $C >/dev/null
in_ echo again

### update --restart
# says: always 0
up
docker update --restart always $C >/dev/null
docker inspect -f '{{.HostConfig.RestartPolicy.Name}} {{.HostConfig.RestartPolicy.MaximumRetryCount}}' $C
docker update --restart no $C >/dev/null

### exec: no such container
# says: exit code 1
fails 1 docker exec $C-not-there true 2>&1 | sed 's/.*No such.*/no such/'
run --rm $IMAGE true

### run --log-driver none
# says: out
run --rm --log-driver none $IMAGE echo out

### start --interactive after stop, --stop-timeout
# says: exited 137
run -d --stop-timeout 1 $IMAGE sh -c 'trap : TERM; echo up; while :; do sleep .2; done' >/dev/null
until_ says up
cli stop $C >/dev/null
state

### --mount type=tmpfs
# says: tmpfs 1024k
run --rm --mount type=tmpfs,dst=/t,tmpfs-size=1m $IMAGE awk '$2 == "/t" {print $3, $4}' /proc/mounts | sed 's/ .*size=/ /;s/,.*//'

### --userns host
# rootless docker: the host's user namespace is the one that rootlesskit has made
# says: \s+0\s+0\s+4294967295
run --rm --userns host $IMAGE cat /proc/self/uid_map

### --gpus: the hook that Docker looks for is not there
# says: exit code 125
fails 125 run --rm --gpus all $IMAGE true
run --rm $IMAGE true
