# rootless: the daemon is in a user namespace already, and refuses userns-remap
### userns-remap: ids inside and outside
# says: inside: 0 0
# says: outside: 100000 200000
# says: \s+0\s+100000\s+65536
# says: \s+0\s+200000\s+65536
# says: no other user namespace: 0
remapped
run --rm $IMAGE cat /proc/self/uid_map /proc/self/gid_map
up
echo inside: $(in_ id -u) $(in_ id -g)
echo outside: $(stat -c '%u %g' /proc/$(pid))
echo no other user namespace: $([[ $(in_ readlink /proc/self/ns/user) == "$(readlink /proc/self/ns/user)" ]] && echo 1 || echo 0)

### userns-remap: --oom-score-adj
# says: 500
remapped
run --rm --oom-score-adj 500 $IMAGE cat /proc/self/oom_score_adj

### userns-remap: output, errors, exit code, command not found
# says: out
# says: ! err
# says: exit code 42
# says: exit code 127
# says: exit code 126
remapped
fails 42 run --rm $IMAGE sh -c 'echo out; echo err >&2; exit 42'
fails 127 run --rm $IMAGE nosuchcommand 2>/dev/null
fails 126 run --rm $IMAGE /etc/passwd 2>/dev/null

### userns-remap: a terminal
# says: /dev/pts/0
# says: 31 97
# says: 0 5
remapped
terminal --size 31x97 -- docker run --rm --runtime $DOCKER_RUNTIME --network none -it $IMAGE sh -c \
  'tty; until stty size 2>/dev/null | grep 31; do sleep .1; done; stat -c "%u %g" /dev/pts/0'

### userns-remap: exec, as another user, with a terminal
# says: 0
# says: 1000 1001
# says: outside: 101000
# says: 27 87
# says: code 7
remapped
up
in_ id -u
cli exec -u 1000:1001 $C sh -c 'echo $(id -u) $(id -g)'
cli exec -d -u 1000 $C sleep 4242
until_ pgrep -u 101000 -f "^sleep 4242"
echo outside: $(ps -o uid= -p $(pgrep -P $(parent $(pid)) -u 101000 -f "^sleep 4242"))
terminal --size 27x87 -- docker exec -it $C sh -c 'until stty size 2>/dev/null | grep 27; do sleep .1; done; exit 7' || echo code $?

### userns-remap: owners in the image, and of what is made
# says: 0 0 /etc/passwd
# says: inside: 7 8
# says: outside: 100007 200008
# says: outside: 100000 200000
remapped
up
in_ stat -c '%u %g %n' /etc/passwd
in_ sh -c 'touch /root/a /root/b; chown 7:8 /root/a; echo inside: $(stat -c "%u %g" /root/a)'
for f in a b; do echo outside: $(stat -c '%u %g' /proc/$(pid)/root/root/$f); done

### userns-remap: owners of a volume
# says: 0 0 written
# says: outside: 100000 200000
# says: outside: 100007 200008
# says: again written
remapped
cli volume create $C >/dev/null
run -v $C:/v $IMAGE sh -c 'echo written >/v/f; chown 7:8 /v/f; echo $(stat -c "%u %g" /v) $(cat /v/f)'
at=$(docker volume inspect -f '{{.Mountpoint}}' $C)
for f in "$at" "$at/f"; do echo outside: $(stat -c '%u %g' $f); done
cli rm -f $C >/dev/null
run --rm -v $C:/v $IMAGE sh -c 'echo again $(cat /v/f)'
cli volume rm $C >/dev/null

### userns-remap: owners of a directory of the host's
# says: 65534 65534
# says: refused
# says: mine
# says: outside: 100000
remapped
mine
mkdir theirs ours
chown 100000:200000 ours
run --rm -v $PWD/theirs:/theirs -v $PWD/ours:/ours $IMAGE sh -c \
  'stat -c "%u %g" /theirs; touch /theirs/x 2>/dev/null || echo refused; touch /ours/x && echo mine'
echo outside: $(stat -c %u ours/x)

### userns-remap: --userns host
# says: \s+0\s+0\s+4294967295
# says: outside: 0
remapped
run --rm --userns host $IMAGE cat /proc/self/uid_map
up --userns host
echo outside: $(stat -c %u /proc/$(pid))
in_ true

### userns-remap: --userns host --privileged, and --privileged alone
# needs: every-capability
# says: CapEff:\t000001f.*
# says: exit code 125
remapped
run --rm --userns host --privileged $IMAGE grep CapEff /proc/self/status
fails 125 run --rm --privileged $IMAGE true 2>/dev/null

### userns-remap: devices, and what is in /dev
# says: zero 3
# says: refused
# says: .*seen 10, 229
remapped
run --rm $IMAGE sh -c 'echo zero $(head -c 3 /dev/zero | wc -c); echo x >/dev/null
  mknod /root/n c 1 3 2>/dev/null || echo refused
  ls /dev | sort | tr "\n" " "'
cli run --rm --network none --device /dev/fuse $IMAGE sh -c 'echo seen $(ls -l /dev/fuse | tr -s " " | cut -d" " -f5,6)'

### userns-remap: mounts, capabilities and limits of its own
# says: mounted
# says: refused
# says: CapEff:\t.*
# says: 111
remapped
run --rm --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined --ulimit nofile=111:222 $IMAGE sh -c '
  mount -t tmpfs x /tmp && echo mounted
  mount -o remount,rw /sys 2>/dev/null || echo refused
  grep CapEff /proc/self/status; ulimit -n'

### userns-remap: --read-only, --tmpfs, --init, --shm-size, --sysctl
# says: refused
# says: 0 0 1770
# says: 3072
# says: 9000
remapped
run --rm --read-only --tmpfs /t:mode=1770 --init --shm-size 3m --sysctl kernel.msgmax=9000 $IMAGE sh -c '
  touch /x 2>/dev/null || echo refused
  stat -c "%u %g %a" /t
  df -k /dev/shm | tail -1 | tr -s " " | cut -d" " -f2
  cat /proc/sys/kernel/msgmax'

### userns-remap: --network, --pid, --ipc container:
# says: pid 1
# says: net 1
# says: ipc 1
# says: user 1
remapped
up --ipc shareable
for i in pid net ipc user; do
  echo "$i $(cli run --rm --network container:$C --pid container:$C --ipc container:$C $IMAGE readlink /proc/self/ns/$i | grep -cF "$(in_ readlink /proc/self/ns/$i)")"
done

### userns-remap: pause, stop, start, kill
# says: paused 0
# says: exited 0
# says: 0
# says: exited 137
remapped
up
listening
cli pause $C >/dev/null
state
cli unpause $C >/dev/null
cli stop -t 9 $C >/dev/null
state
cli start $C >/dev/null
in_ id -u
cli kill $C >/dev/null
cli wait $C >/dev/null
state

### userns-remap: cp, diff, commit
# says: in 0
# says: A /root/f
# says: kept 0
remapped
up
mine
echo in >f
cli cp f $C:/root/f >/dev/null 2>&1
in_ sh -c 'echo $(cat /root/f) $(stat -c %u /root/f); echo kept >/root/k'
cli diff $C | sort
cli commit $C t/$C >/dev/null 2>&1
cli run --rm --network none t/$C sh -c 'echo $(cat /root/k) $(stat -c %u /root/k)'

### userns-remap: live-restore
# says: running 0
# says: 0
# says: exited 0
dockerd_ --userns-remap $REMAPPED --live-restore
up
listening
crash dockerd
dockerd_
state
in_ id -u
cli stop -t 9 $C >/dev/null
state
