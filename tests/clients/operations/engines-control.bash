### exec
# says: hello
# says: exit code 42
# says: ! e
# says: 1
# guest
up
in_ echo hello
fails 42 in_ sh -c 'echo e >&2; exit 42'
in_ sh -c 'cat /proc/self/cgroup | grep -c 0::'

### exec -i
# says: 2
up
printf 'a\nb\n' | cli exec -i $C wc -l

### exec -it
# says: /dev/pts/\d+\\r
# says: 29 88\\r
# says: code 7
up
terminal --size 29x88 -- bash -c "cli exec -it $C sh -c 'test -t 0 && tty; until stty size 2>/dev/null | grep 29; do sleep .1; done; exit 7'" || echo code $?

### exec -it: what is typed
# says: 42
# says: code 5
up
terminal --say '# =echo $((6*7))\r' --say '42=' --say '# =exit 5\r' -- bash -c "cli exec -it $C sh" || echo "code $?"

### exec -d
# says: did
up
cli exec -d $C sh -c 'echo did >/root/did' >/dev/null
until_ in_ test -s /root/did
in_ cat /root/did

### exec -e, -w, -u
# says: y z
# says: /tmp
# says: 1000
# says: 1001
up
cli exec -e X='y z' -w /tmp -u 1000:1001 $C sh -c 'echo $X; pwd; id -u; id -g'

### exec --privileged
# needs: every-capability
# says: CapEff:\t0000000080.*|CapEff:\t00000000a8.*
# says: CapEff:\t000001f.*
up
in_ grep CapEff /proc/self/status
cli exec --privileged $C grep CapEff /proc/self/status

### exec: command not found
# says: .*executable file.*
up
fails "12[67]" in_ nosuchcommand

### exec: command that may not run
# says: exit code 126
# says: (?i).*permission denied.*
up
fails 126 in_ /etc/passwd

### exec: command is a directory
# says: exit code 126
up
fails 126 in_ /etc

### exec: directory that is not there
up
fails 127 cli exec -w /no/such $C true || fails 126 cli exec -w /no/such $C true

### exec: in one that is stopped
# says: failed
up
cli stop -t 1 $C >/dev/null
in_ true || echo failed

### exec: 20 at once
# says:  *20 x
up
for i in {1..20}; do in_ echo x & done | sort | uniq -c; wait

### exec: nothing piles up
# says: sleep
up
for i in {1..10}; do in_ true; done
in_ ps -o comm

### top
# rootless docker: without systemd this Docker gives no cgroup to a user's containers
# says: sleep
up
cli top $C | wc -l
cli top $C -eo pid,comm | tail -n +2 | awk '{print $2}' | sort

### stop
# says: exited 0
# guest
up
listening
cli stop -t 9 $C >/dev/null
state

### stop: one that does not listen
# says: exited 137
run -d $IMAGE sh -c 'trap : TERM; while :; do sleep .2; done' >/dev/null
listening
cli stop -t 1 $C >/dev/null 2>&1
state

### stop: one that is stopped
# says: exited 0
up
listening
cli stop -t 9 $C >/dev/null
cli stop $C >/dev/null
state

### kill
# says: 137
# says: exited 137
up
cli kill $C >/dev/null
cli wait $C
state

### kill -s
# says: 8
# says: usr1
run -d $IMAGE sh -c 'trap "echo usr1" USR1; trap "exit 8" HUP; echo up; while :; do sleep .1; done' >/dev/null
until_ says up
cli kill -s USR1 $C >/dev/null
until_ says usr1
cli kill -s 1 $C >/dev/null
cli wait $C
cli logs $C

### kill: one that is stopped
# says: failed
run $IMAGE true
cli kill $C && echo killed || echo failed

### restart
# says: running
run -d $IMAGE sh -c 'echo up; trap "exit 0" TERM; sleep 1000 & wait' >/dev/null
p=$(pid)
cli restart -t 5 $C >/dev/null
[[ $p != $(pid) ]]
until_ eval "[[ \$(cli logs $C | grep -c up) == 2 ]]"
cli inspect -f '{{.State.Status}}' $C

### restart policy: on-failure
# says: 2 3
run -d --restart on-failure:2 $IMAGE sh -c 'echo try; exit 3' >/dev/null
until_ eval "[[ \$(cli logs $C | grep -c try) == 3 ]]"
sleep .7
cli logs $C
cli inspect -f '{{.RestartCount}} {{.State.ExitCode}}' $C

### restart policy: always
# says: removed
run -d --restart always $IMAGE sh -c 'echo try; sleep .2; exit 0' >/dev/null
until_ eval "(( \$(cli logs $C | grep -c try) >= 3 ))"
cli rm -f $C >/dev/null 2>&1 # may come while nothing runs, and say so
echo removed

### pause, unpause
# rootless docker: without systemd this Docker gives no cgroup to a user's containers
# says: 1
# says: paused
# says: failed
# says: back
# says: running
# guest
up
cli pause $C >/dev/null
cat $(cgroup)/cgroup.freeze
cli inspect -f '{{.State.Status}}' $C
in_ true && echo ran || echo failed
cli unpause $C >/dev/null
in_ echo back
cli inspect -f '{{.State.Status}}' $C

### pause: kill, rm -f
# rootless docker: without systemd this Docker gives no cgroup to a user's containers
up
cli pause $C >/dev/null
cli rm -f $C >/dev/null
cli container inspect $C >/dev/null 2>&1 && echo left
up
cli pause $C >/dev/null
cli kill $C >/dev/null 2>&1 && cli wait $C || echo refused

### rm -f
# rootless docker: without systemd this Docker gives no cgroup to a user's containers
# says: gone
up
g=$(cgroup)
p=$(pid)
cli rm -f $C >/dev/null
until_ eval '[[ ! -e $g && ! -e /proc/$p ]]'
echo gone

### rm: one that runs
# says: refused
up
cli rm $C >/dev/null 2>&1 && echo removed || echo refused

### rename, inspect
# says: <name>.x true
up
cli rename $C $C.x
cli inspect -f '{{.Name}} {{.State.Running}}' $C.x | tr -d /
cli rm -f $C.x >/dev/null

### cp
# says: in
# says: out
up
mine
echo in >f
cli cp f $C:/root/f >/dev/null 2>&1
in_ cat /root/f
in_ sh -c 'echo out >/root/g'
cli cp $C:/root/g g >/dev/null 2>&1
cat g

### diff, commit
# says: A /root/new
# says: x
run $IMAGE sh -c 'echo x >/root/new'
cli diff $C | sort
cli commit $C t/$C >/dev/null 2>&1
cli run --rm --network none t/$C cat /root/new
cli rmi -f t/$C >/dev/null 2>&1

### export
# says: x
run $IMAGE sh -c 'echo x >/root/new'
cli export $C | tar -xO root/new

### attach
# says: got hey
# says: exited 4
run -d -i $IMAGE sh -c 'read x; echo got $x; exit 4' >/dev/null
(echo hey; sleep 1) | cli attach $C || :
state

### ps
# says: <name> test/busybox:1 Up
up
cli ps --filter name=$C --format '{{.Names}} {{.Image}} {{.Status}}' | sed 's/Up .*/Up/;s,localhost/,,;s,docker.io/,,'

### health check: healthy
# says: healthy
# guest
up --health-cmd 'test -e /root/ok' --health-interval 200ms --health-retries 1000
in_ touch /root/ok
until_ healthy
echo healthy

### health check: unhealthy
# says: unhealthy
up --health-cmd 'echo sick; exit 1' --health-interval 200ms --health-retries 2
until_ unhealthy
echo unhealthy

### exec -it: resized
# says: 33 101
up
terminal --size 20x60 --say 'ready=' --resize '=33x101' -- bash -c "cli exec -it $C sh -c 'echo ready; until stty size 2>/dev/null | grep 33; do sleep .1; done; sleep .5'"

### exec -it: interrupted by ^C
# says: (\^C)?caught
# says: code 9
up
terminal --say 'ready=\x03' -- bash -c "cli exec -it $C sh -c 'trap \"echo caught; exit 9\" INT; echo ready; sleep 100 & wait'" || echo "code $?"
