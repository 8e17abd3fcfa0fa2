### run: output, errors, exit code
# says: out
# says: ! err
# says: exit code 42
# guest
fails 42 run_ --rm -- sh -c 'echo out; echo err >&2; exit 42'

### run: command not found
# says: .*executable file not found.*
fails 1 run_ --rm -- nosuchcommand
ctr tasks ls -q

### run: command that may not run
# says: .*permission denied.*
fails 1 run_ --rm -- /etc/passwd

### run -t
# says: 33 99
# says: all
# guest
terminal --size 33x99 -- bash -c "run_ --rm -t -- sh -c 'until stty size 2>/dev/null | grep 33; do sleep .1; done; test -t 0 -a -t 1 -a -t 2 && echo all'"

### run -t: what is typed
# says: 42
# says: code 5
terminal --say '# =echo $((6*7))\r' --say '42=' --say '# =exit 5\r' -- bash -c "run_ --rm -t -- sh" || echo "code $?"

### run -d, tasks ls, kill, rm
# says: RUNNING
# says: STOPPED
# guest
up
status
listening
ctr tasks kill $C
until_ stopped
status
ctr tasks rm $C
ctr containers rm $C

### run -d: killed by SIGKILL
# says: .*exit code 137.*
up
ctr tasks kill -s KILL $C
until_ stopped
ctr tasks rm $C 2>&1

### tasks start, after the task was deleted
# says: RUNNING
up
listening
ctr tasks kill $C
until_ stopped
ctr tasks rm $C
ctr tasks start -d $C >/dev/null
status

### run --null-io, --log-uri
# says: logged
mine
run_ -d --log-uri file://$PWD/log -- sh -c 'echo logged'
until_ stopped
cat log

### run --pid-file
# says: same
mine
up --pid-file $PWD/p
[[ $(cat p) == $(pid) ]] && echo same

### run --env, --cwd, --read-only, --mount
# says: v /tmp 0
# says: hi
mine
echo hi >f
run_ --rm --env A=v --cwd /tmp --read-only --mount type=bind,src=$PWD,dst=/v,options=rbind:ro -- sh -c 'echo $A $PWD $(id -u); cat /v/f; touch /x /v/x'  || echo "code $?"

### run --net-host
# says: 1
run_ --rm --net-host -- readlink /proc/self/ns/net | grep -cF "$(readlink /proc/self/ns/net)"

### run --privileged
# needs: every-capability
# says: CapEff:\t000001f.*
run_ --rm --privileged -- grep CapEff /proc/self/status

### run --cap-add, --cap-drop
# says: CapEff:.*
run_ --rm --cap-add CAP_NET_ADMIN --cap-drop CAP_CHOWN -- grep Cap /proc/self/status

### run --device
# says: 3
run_ --rm --device /dev/zero -- sh -c 'head -c 3 /dev/zero | wc -c'

### run --seccomp
# says: Seccomp:\t2
run_ --rm --seccomp -- grep Seccomp: /proc/self/status

### run --allow-new-privs
# says: NoNewPrivs:\t0
run_ --rm --allow-new-privs -- grep NoNewPrivs /proc/self/status
run_ --rm -- grep NoNewPrivs /proc/self/status

### run --with-ns
# says: 1
up
ctr run --rm --runc-binary $BINARY --with-ns network:/proc/$(pid)/ns/net $IMAGE $C.x readlink /proc/self/ns/net | grep -cF "$(readlink /proc/$(pid)/ns/net)"

### run --uidmap, --gidmap
# on: guest
# says: 0 <base> 65536
base=$((200000 + BASHPID)) # ctr names the snapshot after it
run_ --rm --uidmap 0:$base:65536 --gidmap 0:$base:65536 -- cat /proc/self/uid_map | tr -s ' ' | sed "s/^ //;s/$base/<base>/"

### run --rootfs-propagation
# says: private 0
for i in private rslave rshared; do
  echo "$i $(run_ --rm --rootfs-propagation $i -- awk '$5 == "/"' /proc/self/mountinfo | grep -cE 'shared|master')"
done

### exec
# says: hello
# says: exit code 42
# guest
up
in_ echo hello
fails 42 in_ sh -c 'echo e >&2; exit 42'

### exec: command not found
# says: .*executable file not found.*
up
fails 1 ctr tasks exec --exec-id n $C nosuchcommand

### exec --user, --cwd
# says: 1000 /tmp
up
ctr tasks exec --exec-id u --user 1000 --cwd /tmp $C sh -c 'echo $(id -u) $PWD; sleep .3'

### exec -t
# says: 27 87
# says: code 7
# guest
up
terminal --size 27x87 -- ctr tasks exec -t --exec-id t $C sh -c 'until stty size 2>/dev/null | grep 27; do sleep .1; done; exit 7' || echo code $?

### exec -d
# says: did
up
ctr tasks exec -d --exec-id d $C sh -c 'echo did >/root/did; sleep 1000'
until_ in_ test -s /root/did
in_ cat /root/did

### exec: signalled by its own name
# says: exit code 137
up
(until_ ctr tasks kill -s KILL --exec-id k $C) & fails 137 ctr tasks exec --exec-id k $C sleep 1000

### attach
# says: got hey
mine
mkfifo in
run_ -d -- sh -c 'read x; echo got $x; sleep .5; exit 4' <>in >out 2>&1
(sleep .3; echo hey) | timeout 20 ctr tasks attach $C || echo "code $?"

### kill: a signal that is caught
# says: usr1
# says: .*exit code 9.*
mine
run_ -d --log-uri file://$PWD/log -- sh -c 'trap "echo usr1; exit 9" USR1; echo up; sleep 1000 & wait'
until_ grep -q up log
ctr tasks kill -s USR1 $C
until_ stopped
cat log
ctr tasks rm $C 2>&1

### kill --all
# says: stopped
up
ctr tasks kill --all -s KILL $C
until_ stopped
echo stopped

### kill: one that is stopped
# says: failed
up
ctr tasks kill -s KILL $C
until_ stopped
ctr tasks kill -s KILL $C 2>&1 || echo failed

### pause, resume
# says: PAUSED
# says: 1
# says: back
# guest
up
ctr tasks pause $C
status
cat $(cgroup)/cgroup.freeze
ctr tasks resume $C
in_ echo back
status

### pause: one that is paused
up
ctr tasks pause $C
ctr tasks pause $C 2>&1 && echo again || echo failed
ctr tasks resume $C
ctr tasks resume $C 2>&1 && echo again || echo failed

### ps
# says: [23]
up
ctr tasks ps $C | wc -l

### rm: one that runs
# says: refused
up
ctr tasks rm $C 2>&1 || echo refused

### rm -f
# says: gone
up
p=$(pid) g=$(cgroup)
ctr tasks rm -f $C >/dev/null 2>&1 || :
until_ eval '[[ ! -e /proc/$p && ! -e $g ]]'
echo gone

### the shim is killed: what it leaves is cleaned up
# says: gone
# says: state kept: 0
# guest
up
p=$(pid) g=$(cgroup)
s=$(awk '$1 == "PPid:" { print $2 }' /proc/$p/status)
grep -z containerd-shim /proc/$s/cmdline | tr '\0' '\n' | head -1 | xargs basename
kill -KILL $s
until_ eval '[[ ! -e /proc/$p && ! -e $g ]]'
echo gone
until_ eval '[[ -z $(status) || $(status) == STOPPED || $(status) == UNKNOWN ]]'
echo "state kept: $(ls -d /run/containerd/runc/default/$C 2>/dev/null | wc -l)"
ctr tasks rm -f $C >/dev/null 2>&1 || :
ctr containers rm $C
up
in_ echo again

### a shared pid namespace: its processes die with it
# says: gone
seconds=$BASHPID
run_ -d --with-ns pid:/proc/1/ns/pid -- sh -c "sleep 87654.$seconds & exec sleep 87654.$seconds" >/dev/null
until_ pgrep -f "^sleep 87654.$seconds"
end >/dev/null
until_ eval '! pgrep -f "^sleep 87654.$seconds"'
echo gone

### events of a life
# says: /tasks/create
# says: /tasks/exit
# says: /tasks/delete
mine
ctr events >events & e=$!
sleep .5
run_ --rm -- true
until_ grep -q "/tasks/delete.*$C" events
kill $e
grep "$C" events | grep -oE '/tasks/[a-z-]+'

### metrics
# says: pids.current +2
# needs: pids memory
up
ctr tasks metrics $C | awk '$1 == "pids.current" { print $1, $2 } $1 == "memory.usage" && $2 > 0 { print "memory" }'

### --memory-limit: out of memory, and the event of it
# says: .*exit with non-zero exit code 137.*
# says: /tasks/oom
# needs: memory
mine
ctr events >events &
trap "kill $!; finish" EXIT
listened() { ctr namespaces label default asked=$RANDOM && [[ -s events ]]; }
until_ listened
run_ -d --memory-limit 33554432 -- sh -c '
  until test -e /go; do sleep .1; done; tail -c 100m /dev/zero; rc=$?; until test -e /end; do sleep .1; done; exit $rc'
touch /proc/$(pid)/root/go
until_ grep "/tasks/oom.*$C" events
touch /proc/$(pid)/root/end
until_ stopped
ctr tasks rm $C
grep "$C" events | grep -oE '/tasks/oom' | sort -u

### --cpus, --cpu-shares, --memory-limit
# says: 50000 100000
# says: 67108864
# needs: cpu memory
up --cpus 0.5 --memory-limit 67108864
cat $(cgroup)/cpu.max $(cgroup)/memory.max

### --runc-systemd-cgroup
# short
# says: scope
# needs: systemd
up --runc-systemd-cgroup --cgroup system.slice:ctr:$C
u=$(basename $(cgroup))
[[ $u == ctr-$C.scope ]] && echo scope
systemctl show -P ActiveState $u
end >/dev/null
systemctl show -P ActiveState $u
