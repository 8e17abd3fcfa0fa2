### pod: one network, one ipc namespace
# says: page
# says: same ipc
cli pod create --name $C --network none >/dev/null
devices_in_pod
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
cli run -d --pod $C --name $C-a $IMAGE sh -c 'mkdir /w; echo page >/w/p; exec httpd -f -p 127.0.0.1:80 -h /w' >/dev/null
until_ cli run --rm --pod $C $IMAGE wget -qO- http://127.0.0.1/p
cli run --rm --pod $C $IMAGE wget -qO- http://127.0.0.1/p
ipc=$(cli exec $C-a readlink /proc/self/ns/ipc)
[[ $ipc == ipc:* && $ipc == "$(cli run --rm --pod $C $IMAGE readlink /proc/self/ns/ipc)" ]] && echo same ipc || echo "$ipc; $(cli inspect -f '{{.HostConfig.IpcMode}}' $C-a)"
cli pod stop -t 1 $C >/dev/null
cli pod ps --filter name=$C --format '{{.Status}}'

### pod: shared pid namespace, pause, restart, kill
# says: sleep
# says: Paused
# says: Running
cli pod create --name $C --network none --share pid,ipc,uts >/dev/null
devices_in_pod
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
cli run -d --pod $C --name $C-a $IMAGE sleep 1000 >/dev/null
cli run --rm --pod $C $IMAGE ps -o comm | grep -x sleep
cli pod pause $C >/dev/null
cli pod ps --filter name=$C --format '{{.Status}}'
cli pod unpause $C >/dev/null
cli pod restart $C >/dev/null
cli pod ps --filter name=$C --format '{{.Status}}'
cli pod kill $C >/dev/null 2>&1 # the second dies with the first, whose namespace it is, before or after its own signal
cli wait $C-a

### --systemd=always
# says: /run tmpfs
# says: cgroup rw
# says: container=.*
run --rm --systemd=always $IMAGE sh -c 'awk "\$2 ~ /^\/(run|tmp|run.lock)$/ { print \$2, \$3 }" /proc/mounts | sort
  awk "\$3 == \"cgroup2\" { print \"cgroup\", substr(\$4, 1, 2) }" /proc/mounts
  mkdir /sys/fs/cgroup/below && echo made
  env | grep ^container='
up --systemd=always
cli inspect -f '{{.Config.StopSignal}}' $C

### --userns: an own map
# rootless: the ids are more than a user has
# says: \s+0\s+100000\s+65536
run --rm --uidmap 0:100000:65536 --gidmap 0:200000:65536 $IMAGE sh -c 'cat /proc/self/uid_map /proc/self/gid_map; id -u; touch /root/x && stat -c %u:%g /root/x'

### --userns: exec, limits and devices in it
# rootless: the ids are more than a user has
# says: 0
# says: 3
up --uidmap 0:100000:65536
in_ id -u
in_ sh -c 'head -c 3 /dev/zero | wc -c; : >/dev/null; ls -l /dev/null | tr -s " " | cut -d" " -f1,3-6'
in_ mount -t tmpfs x /mnt || echo refused

### --read-only --read-only-tmpfs
# says: written
run --rm --read-only --read-only-tmpfs=true $IMAGE sh -c 'echo written >/tmp/x; cat /tmp/x; touch /etc/x' || echo refused

### --tmpfs: what the image has there is copied up
# says: root:.*
run --rm --tmpfs /etc $IMAGE grep root: /etc/passwd

### --mount type=image, --mount type=ramfs
# says: busybox
run --rm --mount type=image,src=$IMAGE,dst=/i $IMAGE ls /i/bin | grep -x busybox

### --security-opt mask, unmask
# says: masked
run --rm --security-opt mask=/etc/group --security-opt unmask=/proc/keys $IMAGE sh -c '
  test -s /etc/group || echo masked
  grep -c " /proc/keys " /proc/mounts || :'

### --secret
# says: psst
printf psst | podman secret create $C - >/dev/null
run --rm --secret $C,target=s $IMAGE sh -c 'cat /run/secrets/s; echo'
podman secret rm $C >/dev/null

### --preserve-fds
# says: through fd 3
mine
echo through fd 3 >f
run --rm --preserve-fds 1 $IMAGE sh -c 'cat <&3' 3<f

### --timezone, --umask
# says: 0077
run --rm --umask 0077 $IMAGE sh -c umask

### --timeout
# says: exit code .*
fails "@(137|143|255)" run --timeout 1 $IMAGE sleep 1000

### --rootfs
# says: here
mine
mkdir -p r
cli create --name $C-x $IMAGE true >/dev/null
podman export $C-x | tar -x -C r
podman rm $C-x >/dev/null
cli run --rm --name $C --network none --rootfs $PWD/r sh -c 'echo here >/root/here; cat /root/here'

### init containers, wait --condition
# says: 1
# says: first
mine
cli pod create --name $C --network none >/dev/null
devices_in_pod
trap 'podman --runtime $BINARY pod rm -f -t 0 $C >/dev/null 2>&1; finish' EXIT
cli create --pod $C --init-ctr always --name $C-i -v $PWD:/v $IMAGE sh -c 'echo first >/v/f' >/dev/null
cli create --pod $C --name $C-a -v $PWD:/v $IMAGE sh -c 'cat /v/f; exit 1' >/dev/null
cli pod start $C >/dev/null
cli wait $C-a
cli logs $C-a

### --systemd: a command of that name
# says: /run tmpfs
# says: (37|SIGRTMIN\+3)
mine
podman image save $IMAGE >/dev/null 2>&1 || :
printf 'FROM %s\nRUN mkdir -p /usr/sbin && ln -s /bin/sh /usr/sbin/init\n' $IMAGE >Containerfile
podman --runtime $BINARY build -q --network none --pull=never -t t/$C . >/dev/null 2>&1
cli run -d --name $C --network none t/$C /usr/sbin/init -c 'trap "exit 0" TERM; sleep 1000 & wait' >/dev/null
in_ awk '$2 == "/run" { print $2, $3 }' /proc/mounts
cli inspect -f '{{.Config.StopSignal}}' $C
remove $C >/dev/null
podman rmi -f t/$C >/dev/null

### --userns auto
# says: 0
run --rm --userns auto:size=1024 $IMAGE sh -c 'id -u; awk "{ print \$1, \$3 }" /proc/self/uid_map'

### --userns container:
# rootless: the ids are more than a user has
# says: 1
up --uidmap 0:100000:65536
cli run --rm --network none --userns container:$C $IMAGE readlink /proc/self/ns/user | grep -cF "$(in_ readlink /proc/self/ns/user)"
