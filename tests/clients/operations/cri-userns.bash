### user namespace: ids inside and outside
# needs: containerd-1.7 cni
# compared if: idmap
# says: 0 100000 65536
# says: 0 200000 65536
# says: inside: 0 0
# says: outside: 100000 200000
# says: one for the pod
remapped
up
in_ sh -c 'cat /proc/self/uid_map /proc/self/gid_map' | awk '{ print $1, $2, $3 }'
echo inside: $(in_ id -u) $(in_ id -g)
echo outside: $(stat -c '%u %g' /proc/$(pid))
namespace() { readlink "/proc/$(BOX=$1 && pid)/ns/user"; }
[[ $(namespace $BOX) == "$(namespace $POD)" && $(namespace $BOX) != "$(readlink /proc/self/ns/user)" ]] && echo one for the pod

### user namespace: two containers, their network and their files
# needs: containerd-1.7 cni
# compared if: idmap
# says: the same
# says: 0 0 /etc/passwd
# says: inside: 7 8
# says: outside: 100007 200008
# says: lo
remapped
up
first=$BOX
boot d -- sh -c "$WAITS"
[[ $(in_ readlink /proc/self/ns/user) == "$(cri ExecSync container_id=$first -- readlink /proc/self/ns/user)" ]] && echo the same
in_ stat -c '%u %g %n' /etc/passwd
in_ sh -c 'touch /root/a; chown 7:8 /root/a; stat -c "inside: %u %g" /root/a'
stat -c 'outside: %u %g' /proc/$(pid)/root/root/a
in_ ls /sys/class/net

### user namespace: another user, capabilities, mounts
# needs: containerd-1.7 cni
# compared if: idmap
# says: 1000 1001
# says: outside: 101000
# says: mounted
# says: refused
remapped
pod
boot c linux.security_context:='{"run_as_user":{"value":1000},"run_as_group":{"value":1001}}' -- sh -c "$WAITS"
in_ sh -c 'echo $(id -u) $(id -g)'
echo outside: $(stat -c %u /proc/$(pid))
boot d linux.security_context:='{"capabilities":{"add_capabilities":["SYS_ADMIN"]},"seccomp":{"profile_type":"UNCONFINED"}}' -- sh -c "$WAITS"
in_ sh -c 'mount -t tmpfs x /tmp && echo mounted; mount -o remount,rw /sys 2>/dev/null || echo refused'

### user namespace: a terminal, stop, again in the same pod
# needs: containerd-1.7 cni
# compared if: idmap
# says: 29 83
# says: 0 5
# says: EXITED 0 Completed
# says: stdout F 100000
remapped
up
until_ grep -q up /run/t/$C/logs/c.log
terminal --size 29x83 -- bash -c "cri Exec container_id=$BOX tty:=true stdin:=true stdout:=true -- sh -c 'until stty size 2>/dev/null | grep 29; do sleep .1; done; stat -c \"%u %g\" /dev/pts/0'"
stop 20
status
boot d -- awk '{ print $2 }' /proc/self/uid_map
exited
logs d

### user namespace: the OOM score that a kubelet always gives, also to what is executed
# needs: containerd-1.7 cni
# compared if: idmap
# says: best effort: 1000
# says: burstable: 900 900
# says: critical: 0
remapped
pod
run_as() { boot $1 linux.resources.oom_score_adj:=$2 -- sh -c "$WAITS"; }
run_as c 1000
echo best effort: $(in_ cat /proc/self/oom_score_adj)
run_as d 900
echo burstable: $(cat /proc/$(pid)/oom_score_adj) $(in_ cat /proc/self/oom_score_adj)
run_as e 0
echo critical: $(in_ cat /proc/self/oom_score_adj)

### user namespace: a directory of the host's, idmapped
# needs: containerd-2.0 cni
# compared if: idmap
# says: 0 0
# says: outside: 0 0
remapped
mine
mkdir v
pod
boot c mounts:='[{"container_path":"/v","host_path":"'$PWD/v'","uidMappings":'"$(ids 100000)"',"gidMappings":'"$(ids 200000)"'}]' -- sh -c "$WAITS"
in_ sh -c 'touch /v/f; stat -c "%u %g" /v/f'
echo outside: $(stat -c '%u %g' v/f)

### user namespace: its pod is removed, with its containers in it
# needs: containerd-1.7 cni
# compared if: idmap
# says: \[\]
# says: 0
remapped
up
end
cri ListPodSandbox filter.id=$POD -q items
grep -c "/run/t/$C/" /proc/mounts || :
