"""What Docker and Podman have in common, second part: what a container sees, may do, and can take."""

from __future__ import annotations

from tests.clients.operation import Operation

#: A shared mount of this machine with a directory in it, to look at propagation both ways.
SHARED = """mine; mkdir -p m; mount -t tmpfs t m; mount --make-shared m; mkdir m/d m/host; trap 'umount -R m; finish' EXIT
look() { in_ sh -c "grep ' /v ' /proc/self/mountinfo | grep -oE '(shared|master)' || echo private"; }
"""

STORAGE = (
    Operation("-v", "mine; echo hi >f; run --rm -v $PWD:/v $IMAGE sh -c 'cat /v/f; echo w >/v/g'; cat g", ("hi", "w"), guest=True),
    Operation("-v ro", "mine; run --rm -v $PWD:/v:ro $IMAGE sh -c 'echo w >/v/g' || echo refused", ("refused",)),
    Operation("-v of a file", "mine; echo hi >f; run --rm -v $PWD/f:/etc/group:ro $IMAGE cat /etc/group", ("hi",)),
    Operation("-v: named volume", "cli volume create $C >/dev/null; run -v $C:/etc $IMAGE sh -c 'test -s /etc/passwd && echo copied; echo x >/etc/x'; cli rm -f $C >/dev/null; run --rm -v $C:/w $IMAGE cat /w/x; cli volume rm -f $C >/dev/null", ("copied", "x")),
    Operation("--volumes-from", "mine; echo hi >f; up -v $PWD:/v; cli run --rm --network none --volumes-from $C $IMAGE cat /v/f", ("hi",)),
    Operation("--mount type=bind,readonly", "mine; run --rm --mount type=bind,source=$PWD,target=/v,readonly $IMAGE sh -c 'grep -o \" /v ro\" /proc/self/mountinfo'", (" /v ro",)),
    *(
        Operation(f"-v {flag}", SHARED + f"up -v $PWD/m:/v:{flag}; look; mount -t tmpfs late m/host; in_ grep -c ' /v/host ' /proc/self/mountinfo || :; "
                  f"cli rm -f $C >/dev/null; up --cap-add SYS_ADMIN --security-opt seccomp=unconfined {{armor}} -v $PWD/m:/v:{flag}; in_ mount -t tmpfs inner /v/d; "
                  "grep -c \"$C/m/d \" /proc/self/mountinfo || :".replace("{armor}", ""), says)
        for flag, says in (
            ("private", ("private", "0", "0")), ("rprivate", ("private", "0", "0")),
            ("slave", ("master", "1", "0")), ("rslave", ("master", "1", "0")),
            ("shared", ("shared", "1", "1")), ("rshared", ("shared", "1", "1")),
        )
    ),
    Operation("--tmpfs", "run --rm --tmpfs /t:size=2m,mode=1770,noexec $IMAGE sh -c 'stat -c %a /t; grep \" /t \" /proc/self/mounts | tr , \"\\n\" | grep -e noexec -e size'", ("1770", "size=2048k.*", "noexec")),
    Operation("--read-only", "run --rm --read-only $IMAGE sh -c 'touch /x; touch /etc/x' || echo refused", ("refused", ".*Read-only file system.*"), guest=True),
    Operation("--read-only --tmpfs", "run --rm --read-only --tmpfs /t $IMAGE sh -c 'touch /t/x && echo written; touch /x'|| echo refused", ("written", "refused")),
    Operation("mounts of a container", "run --rm $IMAGE awk '{print $2, $3}' /proc/self/mounts | grep -v -e /etc/ -e /run/ | sort", ("/proc proc", "/dev/mqueue mqueue")),
    Operation("what is hidden", "run --rm $IMAGE sh -c 'grep -c . /proc/kcore /proc/keys /proc/timer_list 2>&1; ls /proc/acpi /sys/firmware | wc -l; touch /proc/sys/kernel/x /sys/x 2>&1 | grep -c Read-only; echo 1 >/proc/sysrq-trigger'; ", ("2",)),
    Operation("nodes in /dev", "run --rm $IMAGE sh -c 'cd /dev; ls -lR . | tr -s \" \" | cut -d\" \" -f1,3-6,10-'"),
)  # fmt: skip

SECURITY = (
    Operation("capabilities", "run --rm $IMAGE grep Cap /proc/self/status", ("CapInh:\t0000000000000000", "CapAmb:\t0000000000000000"), guest=True),
    Operation("--cap-drop ALL", "run --rm --cap-drop ALL $IMAGE grep Cap /proc/self/status", ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000")),
    Operation("--cap-drop, --cap-add", "run --rm --cap-drop ALL --cap-add NET_ADMIN --cap-add CHOWN $IMAGE grep Cap /proc/self/status", ("CapEff:\t0000000000001001",)),
    Operation("--cap-drop of one", "run --rm --cap-drop CHOWN $IMAGE chown 1 /etc/passwd || echo refused", ("refused",)),
    Operation("-u: capabilities of another user", "run --rm -u 1000 $IMAGE grep Cap /proc/self/status", ("CapEff:\t0000000000000000",)),
    Operation("--security-opt no-new-privileges", "run --rm --security-opt no-new-privileges $IMAGE grep NoNewPrivs /proc/self/status; run --rm $IMAGE grep NoNewPrivs /proc/self/status", ("NoNewPrivs:\t1", "NoNewPrivs:\t0")),
    Operation("seccomp: the default profile", "run --rm $IMAGE sh -c 'grep Seccomp: /proc/self/status; unshare -m true' || echo refused", ("Seccomp:\t2", "refused"), guest=True),
    Operation("--security-opt seccomp=unconfined", "run --rm --security-opt seccomp=unconfined $IMAGE grep Seccomp: /proc/self/status", ("Seccomp:\t0",)),
    Operation("--security-opt seccomp=FILE", """mine; echo '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}' >p.json
        run --rm --security-opt seccomp=$PWD/p.json $IMAGE sh -c 'mkdir /root/x || echo refused; touch /root/y && echo written'""", (".*No space left on device", "refused", "written")),
    Operation("--privileged", "run --rm --privileged $IMAGE sh -c 'grep -e CapEff -e Seccomp: -e NoNew /proc/self/status; mount -t tmpfs x /tmp && echo mounted; ls /dev | wc -l | awk \"{print \\$1 > 16}\"; grep -c \"sysfs rw\" /proc/mounts; head -c 1 /proc/kcore | wc -c'",
              ("Seccomp:\t0", "mounted"), guest=True),
    Operation("--device", "run --rm --device /dev/zero:/dev/mine:r $IMAGE sh -c 'ls -l /dev/mine | tr -s \" \" | cut -d\" \" -f1,3-6; head -c 3 /dev/mine | wc -c'", ("crw-rw-rw- 0 0 1, 5|crw-rw-rw- root root 1, 5", "3")),
    Operation("--device: not beyond its access", "run --rm --device /dev/loop-control:/dev/lc:r $IMAGE sh -c ': </dev/lc && echo read; : >/dev/lc' || echo refused", ("refused",), native="the loop driver is not there"),
    Operation("devices: what is not granted", "run --rm --cap-add MKNOD $IMAGE sh -c 'mknod /root/m c 1 1; : </root/m' || echo refused", (".*Operation not permitted", "refused"), guest=True),
    Operation("--device-cgroup-rule", "run --rm --cap-add MKNOD --device-cgroup-rule 'c 195:0 rw' $IMAGE sh -c 'for i in 0 1; do mknod /root/$i c 195 $i; (: <>/root/$i) 2>&1; done'; ", (".*No such device or address", ".*Operation not permitted"), guest=True),
    Operation("--security-opt apparmor, label", "run --rm --security-opt label=disable $IMAGE echo ran", ("ran",)),
)  # fmt: skip

NAMESPACES = (
    Operation("--network none", "run --rm $IMAGE ls /sys/class/net", ("lo",)),
    Operation("--network bridge", "cli run --rm --name $C --network bridge $IMAGE sh -c 'ls /sys/class/net; ip -o -4 addr show eth0 | wc -l; ip route | grep -c default'", ("eth0", "1"), guest=True),
    Operation("--network host", "cli run --rm --name $C --network host $IMAGE readlink /proc/self/ns/net | grep -c \"$(readlink /proc/self/ns/net)\"", ("1",)),
    Operation("--network container:", "up; cli run --rm --network container:$C $IMAGE readlink /proc/self/ns/net | grep -c \"$(in_ readlink /proc/self/ns/net)\"", ("1",)),
    Operation("two containers talk", "cli run -d --name $C --network bridge $IMAGE sh -c 'mkdir /w; echo page >/w/p; exec httpd -f -p 80 -h /w' >/dev/null; a=$(cli inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' $C); until_ cli run --rm --network bridge $IMAGE wget -qO- http://$a/p; cli run --rm --network bridge $IMAGE wget -qO- http://$a/p", ("page",)),
    Operation("-p", "cli run -d --name $C -p 127.0.0.1:18080:80 $IMAGE sh -c 'mkdir /w; echo page >/w/p; exec httpd -f -p 80 -h /w' >/dev/null; until_ busybox wget -qO- http://127.0.0.1:18080/p; busybox wget -qO- http://127.0.0.1:18080/p", ("page",)),
    Operation("a pid namespace of its own", "run --rm $IMAGE sh -c 'echo $$; ls -d /proc/[0-9]* | wc -l'", ("1",)),
    Operation("--pid host", "run --rm --pid host $IMAGE sh -c 'readlink /proc/self/ns/pid' | grep -c \"$(readlink /proc/self/ns/pid)\"", ("1",), guest=True),
    Operation("--pid host: its processes die with it", "run -d --pid host $IMAGE sh -c 'sleep 98765 & sleep 98765 & wait' >/dev/null; until_ pgrep -f 'sleep 98765'; cli rm -f $C >/dev/null; until_ eval '! pgrep -f \"^sleep 98765\"'; echo gone", ("gone",), guest=True),
    Operation("--pid container:", "up; cli run --rm --network none --pid container:$C $IMAGE sh -c 'ps -o comm | sort -u'", ("sleep",), guest=True),
    Operation("--ipc host, --uts host", "run --rm --ipc host --uts host $IMAGE readlink /proc/self/ns/ipc /proc/self/ns/uts | grep -c -e \"$(readlink /proc/self/ns/ipc)\" -e \"$(readlink /proc/self/ns/uts)\"", ("2",)),
    Operation("--ipc container:", "up --ipc shareable; cli run --rm --network none --ipc container:$C $IMAGE readlink /proc/self/ns/ipc | grep -c \"$(in_ readlink /proc/self/ns/ipc)\"", ("1",)),
    Operation("--cgroupns host, private", "for i in host private; do run --rm --cgroupns $i $IMAGE readlink /proc/self/ns/cgroup | grep -c \"$(readlink /proc/self/ns/cgroup)\" || :; done; run --rm $IMAGE grep 0:: /proc/self/cgroup", ("1", "0", "0::/"),
              native="the cgroup namespace is the bed's own, not the daemon's first"),
    Operation("cgroup mount is read-only", "run --rm $IMAGE sh -c 'grep -o \"cgroup2 ro\" /proc/mounts; mkdir /sys/fs/cgroup/x' || echo refused", ("cgroup2 ro", "refused")),
)  # fmt: skip

LIMITS = (
    Operation("-m", "up -m 64m --memory-swap 64m; cat $(cgroup)/memory.max $(cgroup)/memory.swap.max; in_ cat /sys/fs/cgroup/memory.max", ("67108864", "0"), ("memory",)),
    Operation("--memory-reservation", "up -m 64m --memory-reservation 32m; cat $(cgroup)/memory.low", ("33554432",), ("memory",)),
    Operation("-m: out of memory", "fails 137 run -m 32m --memory-swap 32m $IMAGE dd if=/dev/zero of=/dev/null bs=100M; cli inspect -f '{{.State.OOMKilled}} {{.State.ExitCode}}' $C", ("true 137",), ("memory",)),
    Operation("--pids-limit", "up --pids-limit 20; cat $(cgroup)/pids.max; in_ sh -c 'for i in $(seq 30); do sleep 5 & done' 2>&1 | grep -c \"can't fork\"", ("20", "1"), ("pids",)),
    Operation("--cpus", "up --cpus 0.5; cat $(cgroup)/cpu.max", ("50000 100000",), ("cpu",)),
    Operation("--cpu-shares", "up --cpu-shares 512; cat $(cgroup)/cpu.weight", (), ("cpu",)),
    Operation("--cpuset-cpus", "up --cpuset-cpus 0; cat $(cgroup)/cpuset.cpus; in_ grep Cpus_allowed_list /proc/self/status", ("0",), ("cpuset",)),
    Operation("--blkio-weight", "up --blkio-weight 300; cat $(cgroup)/io.weight $(cgroup)/io.bfq.weight 2>&1 | sed 's,/sys.*:,:,'", (), ("io",)),
    Operation("update --memory", "up -m 64m --memory-swap 64m; cli update --memory 96m --memory-swap 96m $C >/dev/null; cat $(cgroup)/memory.max; cli inspect -f '{{.HostConfig.Memory}}' $C", ("100663296",), ("memory",)),
    Operation("update --cpus, --pids-limit", "up --cpus 0.5; cli update --cpus 0.25 --pids-limit 33 $C >/dev/null; cat $(cgroup)/cpu.max $(cgroup)/pids.max", ("25000 100000", "33"), ("cpu", "pids")),
    Operation("update: devices are as they were", "up --device-cgroup-rule 'c 195:0 rw' --cap-add MKNOD; in_ mknod /root/a c 195 0; cli update --cpus 0.5 $C >/dev/null; in_ sh -c '(: <>/root/a) 2>&1; (: </dev/zero) && echo zero' || :", (".*No such device or address", "zero"), ("cpu",)),
    Operation("stats", "up -m 64m; cli stats --no-stream --format '{{.Name}} {{.PIDs}} {{.MemUsage}}' $C | sed -E 's,[0-9.]+[kMK]i?B /,<used> /,'", ("<name> 2 <used> / (64MiB|67.11MB)",), ("memory", "pids")),
    Operation("the scope is systemd's", "up; [[ $(cgroup) == *.scope ]] && echo scope; u=$(basename $(cgroup)); systemctl show -P ActiveState $u; cli rm -f $C >/dev/null; until_ eval '[[ ! -e /run/systemd/transient/$u ]]'; systemctl show -P ActiveState $u",
              ("scope", "active", "inactive"), ("systemd",)),
    Operation("devices outlive a daemon-reload", "up --device-cgroup-rule 'c 195:0 rw' --cap-add MKNOD; in_ mknod /root/a c 195 0; in_ mknod /root/b c 195 1; for i in 1 2; do systemctl daemon-reload; in_ sh -c 'for f in a b; do (: <>/root/$f) 2>&1; done'; done || :",
              (".*No such device or address", ".*Operation not permitted"), ("systemd",)),
)  # fmt: skip
