### container: created, started, ended
# says: CREATED 0
# says: stdout F out
# says: stderr F err
# says: EXITED 3 Error
# guest
pod
box c -- sh -c 'echo out; echo err >&2; exit 3'
cri ContainerStatus container_id=$BOX -q status.state -q status.exit_code -q status.reason
start
exited
logs c | sort
status

### container: exit code 0 is Completed
# says: EXITED 0 Completed
run_ -- true

### container: command not found
# says: .*executable file not found in \$PATH.*
# says: EXITED 128 StartError
pod
fails 1 boot c -- nosuchcommand 2>&1
status

### container: path not found
# says: .*no such file or directory.*
pod
fails 1 boot c -- /no/such 2>&1
status

### container: command that may not run
# says: .*permission denied.*
pod
fails 1 boot c -- /etc/passwd 2>&1

### container: started twice
# says: .*is not in CONTAINER_CREATED state|.*
up
fails 1 start

### container: command, args, working directory, environment
# says: stdout F /tmp a b=c
run_ working_dir=/tmp envs:='[{"key":"A","value":"a"},{"key":"B","value":"b=c"}]' -- sh -c 'echo $PWD $A $B'

### container: a working directory that is not there
# says: stdout F /some/where
run_ working_dir=/some/where -- pwd

### container: stopped by SIGTERM
# says: EXITED 0 Completed
up
until_ grep -q up /run/t/$C/logs/c.log
stop 20
status

### container: one that does not listen to SIGTERM
# says: EXITED 137 Error
pod
boot c -- sleep 1000
stop 1
status

### container: stopped at once
# says: EXITED 137 Error
up
stop 0
status

### container: one that ended is stopped, and removed twice
# says: .*NotFound.*
pod
boot c -- true
exited
stop 1
cri RemoveContainer container_id=$BOX >/dev/null
cri RemoveContainer container_id=$BOX >/dev/null
fails 1 status

### container: one that runs is removed
# says: \[\]
up
cri RemoveContainer container_id=$BOX >/dev/null
cri ListContainers filter.id=$BOX -q containers

### container: killed from outside
# says: EXITED 137 Error
up
kill -9 $(pid)
exited
status

### container: again in the same pod
# says: EXITED 0 Completed
# says: stdout F 2
pod
boot c -- sh -c 'echo 1'
exited
cri RemoveContainer container_id=$BOX >/dev/null
boot d metadata.attempt:=1 -- sh -c 'echo 2'
exited
logs d
status

### container: list
# says: c RUNNING
up
cri ListContainers filter.pod_sandbox_id=$POD -q containers.0.metadata.name -q containers.0.state

### container: log is reopened
# says: stdout F new
mine
up stdin:=true
mv logs/c.log logs/old.log
cri ReopenContainerLog container_id=$BOX >/dev/null
cri ExecSync container_id=$BOX -- sh -c 'echo new >/proc/1/fd/1'
until_ grep new logs/c.log
logs c

### container: a pause through the shim
# says: PAUSED
# says: RUNNING
# says: still
up
task() { ctr tasks ls | awk -v c="$BOX" '$1 == c { print $3 }'; }
ctr tasks pause $BOX
task
ctr tasks resume $BOX
task
in_ echo still

### container: processes
# says: 2
up
until_ eval '[[ $(ctr tasks ps $BOX | tail -n +2 | wc -l) == 2 ]]'
ctr tasks ps $BOX | tail -n +2 | wc -l

### container: mounts
# says: hi
# says: refused
# says: kept
mine
mkdir r w
echo hi >r/f
pod
boot c mounts:='[{"container_path":"/r","host_path":"'$PWD/r'","readonly":true},{"container_path":"/w","host_path":"'$PWD/w'"}]' -- \
  sh -c "$WAITS"
in_ cat /r/f
in_ sh -c 'echo x >/r/f' || echo refused
in_ sh -c 'echo kept >/w/f'
cat w/f

### container: propagation of mounts
# says: PRIVATE 0 0
# says: HOST_TO_CONTAINER 1 0
# says: BIDIRECTIONAL 1 1
mine
mkdir m
mount -t tmpfs t m
mount --make-shared m
trap 'umount -Rl m; finish' EXIT
pod linux.security_context.privileged:=true
for p in PRIVATE HOST_TO_CONTAINER BIDIRECTIONAL; do
  mkdir m/$p-out m/$p-in
  boot $p linux.security_context.capabilities:='{"add_capabilities":["SYS_ADMIN"]}' linux.security_context.seccomp:='{"profile_type":"UNCONFINED"}' \
    mounts:='[{"container_path":"/m","host_path":"'$PWD/m'","propagation":"'$p'"}]' -- sh -c "$WAITS"
  mount -t tmpfs outer m/$p-out
  in_ mount -t tmpfs inner /m/$p-in
  echo $p $(in_ grep -c " /m/$p-out " /proc/self/mountinfo || :) $(grep -c "$C/m/$p-in " /proc/self/mountinfo || :)
done

### container: what its files are
# says: stdout F /dev/mqueue mqueue
run_ -- sh -c 'awk "{print \$2, \$3}" /proc/self/mounts | grep -v -e /etc/ | sort; ls /dev | sort | tr "\n" " "'

### container: devices
# says: stdout F written
# says: stdout F refused
run_ devices:='[{"container_path":"/dev/a","host_path":"/dev/kmsg","permissions":"w"},{"container_path":"/dev/b","host_path":"/dev/kmsg","permissions":"w"}]' -- \
  sh -c ': >/dev/a && echo written; (: </dev/b) 2>/dev/null || echo refused'

### container: user, groups
# says: stdout F 1000 1001 1001 7 8
run_ linux.security_context:='{"run_as_user":{"value":1000},"run_as_group":{"value":1001},"supplemental_groups":[7,8]}' -- \
  sh -c 'echo $(id -u) $(id -g) $(id -G)'

### container: user by name
# says: stdout F 65534
run_ linux.security_context:='{"run_as_username":"nobody"}' -- id -u

### container: capabilities
# says: stdout F CapEff:\t[0-9a-f]{15}a
run_ linux.security_context:='{"capabilities":{"add_capabilities":["NET_ADMIN"],"drop_capabilities":["CHOWN"]}}' -- grep Cap /proc/self/status

### container: all capabilities dropped
# says: stdout F CapEff:\t0000000000000000
run_ linux.security_context:='{"capabilities":{"drop_capabilities":["ALL"]}}' -- grep Cap /proc/self/status

### container: seccomp, no_new_privs
# says: stdout F Seccomp:\t2
# says: stdout F NoNewPrivs:\t1
run_ linux.security_context:='{"no_new_privs":true,"seccomp":{"profile_type":"RUNTIME_DEFAULT"}}' -- grep -e Seccomp: -e NoNewPrivs /proc/self/status

### container: a profile of seccomp in a file
# says: stdout F refused
mine
echo '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}' >p.json
run_ linux.security_context:='{"seccomp":{"profile_type":"LOCALHOST","localhost_ref":"localhost/'$PWD'/p.json"}}' -- \
  sh -c 'mkdir /x 2>/dev/null || echo refused'

### container: read-only root file system
# says: stdout F refused
run_ linux.security_context:='{"readonly_rootfs":true}' -- sh -c 'touch /x 2>/dev/null || echo refused'

### container: masked and read-only paths
# says: stdout F 0
# says: stdout F refused
run_ linux.security_context:='{"masked_paths":["/proc/meminfo","/root"],"readonly_paths":["/tmp"]}' -- \
  sh -c 'wc -c </proc/meminfo; ls /root; touch /tmp/x 2>/dev/null || echo refused'

### container: privileged
# needs: every-capability
# on: native
# says: stdout F mounted
pod linux.security_context.privileged:=true
boot c linux.security_context:='{"privileged":true}' -- sh -c 'grep -e CapEff -e Seccomp: /proc/self/status; mount -t tmpfs x /tmp && echo mounted; grep -c "sysfs rw" /proc/mounts'
exited
logs c

### container: oom_score_adj
# says: stdout F 500
run_ linux.resources.oom_score_adj:=500 -- cat /proc/self/oom_score_adj
