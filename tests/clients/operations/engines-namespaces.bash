### --network none
# says: lo
run --rm $IMAGE ls /sys/class/net

### --network bridge
# says: eth0
# says: 1
# guest
cli run --rm --name $C --network bridge $IMAGE sh -c 'ls /sys/class/net; ip -o -4 addr show eth0 | wc -l; ip route | grep -c default'

### --network host
# rootless docker: the host's network is the one that rootlesskit has made
# says: 1
cli run --rm --name $C --network host $IMAGE readlink /proc/self/ns/net | grep -cF "$(readlink /proc/self/ns/net)"

### --network container:
# says: 1
up
cli run --rm --network container:$C $IMAGE readlink /proc/self/ns/net | grep -cF "$(in_ readlink /proc/self/ns/net)"

### two containers talk
# says: page
cli run -d --name $C --network bridge $IMAGE sh -c 'mkdir /w; echo page >/w/p; exec httpd -f -p 80 -h /w' >/dev/null
a=$(cli inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' $C)
until_ cli run --rm --network bridge $IMAGE wget -qO- http://$a/p
cli run --rm --network bridge $IMAGE wget -qO- http://$a/p

### -p
# says: page
cli run -d --name $C -p 127.0.0.1::80 $IMAGE sh -c 'mkdir /w; echo page >/w/p; exec httpd -f -p 80 -h /w' >/dev/null
a=$(cli port $C 80)
until_ busybox wget -qO- http://$a/p
busybox wget -qO- http://$a/p

### a pid namespace of its own
# says: /proc/1
run --rm $IMAGE sh -c 'echo $$; set -- /proc/[0-9]*; echo $*'

### --pid host
# rootless docker: Docker wants a new proc, which a user may only mount in a pid namespace of their own
# says: 1
run --rm --pid host $IMAGE sh -c 'readlink /proc/self/ns/pid' | grep -cF "$(readlink /proc/self/ns/pid)"

### --pid host: its processes die with it
# rootless docker: without systemd this Docker gives no cgroup to a user's containers
# says: gone
# guest
seconds=$BASHPID
run -d --pid host $IMAGE sh -c "sleep 98765.$seconds & exec sleep 98765.$seconds" >/dev/null 2>&1 || :
until_ pgrep -f "^sleep 98765.$seconds"
cli rm -f $C >/dev/null
until_ eval '! pgrep -f "^sleep 98765.$seconds"'
echo gone

### --pid container:
# says: sleep
up
cli run --rm --network none --pid container:$C $IMAGE sh -c 'ps -o comm | grep sleep'

### --ipc host, --uts host
# rootless docker: Docker wants a new mqueue, which a user may only mount in an ipc namespace of their own
# says: ipc 1
# says: uts 1
for i in ipc uts; do echo "$i $(run --rm --ipc host --uts host $IMAGE readlink /proc/self/ns/$i | grep -cF "$(readlink /proc/self/ns/$i)")"; done

### --ipc container:
# says: 1
up --ipc shareable
cli run --rm --network none --ipc container:$C $IMAGE readlink /proc/self/ns/ipc | grep -cF "$(in_ readlink /proc/self/ns/ipc)"

### --cgroupns host, private
# says: host 1
# says: private 0
# says: 0::/
for i in host private; do echo "$i $(run --rm --cgroupns $i $IMAGE readlink /proc/self/ns/cgroup | grep -cF "$(readlink /proc/self/ns/cgroup)")"; done
run --rm $IMAGE grep 0:: /proc/self/cgroup

### cgroup mount is read-only
# says: cgroup2 ro
# says: refused
run --rm $IMAGE sh -c 'grep -o "cgroup2 ro" /proc/mounts; mkdir /sys/fs/cgroup/x' || echo refused
