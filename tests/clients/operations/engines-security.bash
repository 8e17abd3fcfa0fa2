### capabilities
# says: CapInh:\t0000000000000000
# says: CapAmb:\t0000000000000000
run --rm $IMAGE grep Cap /proc/self/status

### --cap-drop ALL
# says: CapEff:\t0000000000000000
# says: CapBnd:\t0000000000000000
run --rm --cap-drop ALL $IMAGE grep Cap /proc/self/status

### --cap-drop, --cap-add
# says: CapEff:\t0000000000001001
run --rm --cap-drop ALL --cap-add NET_ADMIN --cap-add CHOWN $IMAGE grep Cap /proc/self/status

### --cap-drop of one
# says: refused
run --rm --cap-drop CHOWN $IMAGE chown 1 /etc/passwd || echo refused

### -u: capabilities of another user
# says: CapEff:\t0000000000000000
run --rm -u 1000 $IMAGE grep Cap /proc/self/status

### --security-opt no-new-privileges
# says: NoNewPrivs:\t1
# says: NoNewPrivs:\t0
run --rm --security-opt no-new-privileges $IMAGE grep NoNewPrivs /proc/self/status
run --rm $IMAGE grep NoNewPrivs /proc/self/status

### seccomp: the default profile
# says: Seccomp:\t2
# says: refused
# guest
run --rm $IMAGE sh -c 'grep Seccomp: /proc/self/status; unshare -m true' || echo refused

### --security-opt seccomp=unconfined
# says: Seccomp:\t0
run --rm --security-opt seccomp=unconfined $IMAGE grep Seccomp: /proc/self/status

### --security-opt seccomp=FILE
# says: .*No space left on device
# says: refused
# says: written
mine
echo '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}' >p.json
run --rm --security-opt seccomp=$PWD/p.json $IMAGE sh -c 'mkdir /root/x || echo refused; touch /root/y && echo written'

### --privileged
# says: Seccomp:\t0
# says: mounted
# guest
run --rm --privileged $IMAGE sh -c 'grep -e CapEff -e Seccomp: -e NoNew /proc/self/status; mount -t tmpfs x /tmp && echo mounted; ls /dev | wc -l | awk "{print \$1 > 16}"; grep -c "sysfs rw" /proc/mounts; head -c 1 /proc/kcore | wc -c'

### --device
# rootless docker: a user makes no device nodes, and Docker does not tell the runtime which of the host is meant by another name
# says: crw-rw-rw- (0 0|root root|nobody nogroup) 1, 5
# says: 3
run --rm --device /dev/zero:/dev/mine:r $IMAGE sh -c 'ls -l /dev/mine | tr -s " " | cut -d" " -f1,3-6; head -c 3 /dev/mine | wc -c'

### --device: not beyond its access
# says: refused
# native: the loop driver is not there
run --rm --device /dev/loop-control:/dev/lc:r $IMAGE sh -c ': </dev/lc && echo read; : >/dev/lc' || echo refused

### devices: what is not granted
# says: .*Operation not permitted
# says: refused
run --rm --cap-add MKNOD $IMAGE sh -c 'mknod /root/m c 1 1; : </root/m' || echo refused

### --device-cgroup-rule
# rootless: only root of the host makes device nodes and loads the programs that decide about them
# says: .*No such device or address
# says: .*Operation not permitted
# guest
run --rm --cap-add MKNOD --device-cgroup-rule 'c 195:0 rw' $IMAGE sh -c 'for i in 0 1; do mknod /root/$i c 195 $i; (: <>/root/$i) 2>&1; done; true'

### --security-opt apparmor, label
# says: ran
run --rm --security-opt label=disable $IMAGE echo ran
