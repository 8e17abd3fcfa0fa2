"""The configs under which a process is asked what it can see: each changes one thing that a config.json can say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.native.bundle import Bundle, Config
from tests.security.profile import engine_profile

Change = Callable[[Bundle], object]

DOCKER_CAPABILITIES = [
    f"CAP_{name}"
    for name in """CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE
    SYS_CHROOT KILL AUDIT_WRITE""".split()
]
MASKED = """/proc/asound /proc/acpi /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/timer_stats
/proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap""".split()
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def engine(b: Bundle, *, terminal: bool = False, cgroup: str = "ro", nnp: bool = False) -> Bundle:
    """The shape that Docker's and containerd's config.json have: mounts, capabilities, filter, masks, rules for devices."""
    b.capabilities(*DOCKER_CAPABILITIES)
    b.process["noNewPrivileges"] = nnp
    b.process["terminal"] = terminal
    b.process["oomScoreAdj"] = 500
    b.process["rlimits"] = []
    b.config["mounts"][0]["options"] = ["nosuid", "noexec", "nodev"]
    b.mount("/sys/fs/cgroup", "cgroup", cgroup, "nosuid", "noexec", "nodev", kind="cgroup")
    b.linux["seccomp"] = engine_profile()
    b.linux["maskedPaths"], b.linux["readonlyPaths"] = MASKED, READ_ONLY
    b.linux["sysctl"] = {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}
    rules = [{"allow": False, "access": "rwm"}]
    rules += [{"allow": True, "type": kind, "access": "m"} for kind in "cb"]
    nodes = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2), (136, -1)]
    rules += [{"allow": True, "type": "c", "major": x, "minor": y, "access": "rwm"} for x, y in nodes]
    b.linux["resources"] = {"devices": rules}
    return b


def podman(b: Bundle) -> None:
    """What Podman adds to that: its limits, umask, propagation, a read-only cgroup tree, /run as a tmpfs."""
    engine(b)
    b.process["rlimits"] = [{"type": "RLIMIT_NPROC", "soft": 4096, "hard": 4096}]
    b.process["umask"] = 0o22
    b.linux["rootfsPropagation"] = "rslave"
    b.process["user"]["umask"] = 0o22
    b.mount("/run", "tmpfs", "nosuid", "nodev", "noexec", "mode=755", "tmpcopyup", kind="tmpfs")


def kubernetes(b: Bundle) -> None:
    """A container of a pod: a user, no_new_privs, a read-only root, files of the node bound into it."""
    engine(b, nnp=True)
    b.process["user"] = {"uid": 1000, "gid": 1000, "additionalGids": [1000, 2000]}
    b.config["root"]["readonly"] = True
    shared = b.directory / "shared"
    shared.mkdir()
    b.mount("/etc/hosts", "/etc/hosts", "rbind", "rprivate", "rw")
    b.mount("/var", str(shared), "rbind", "rprivate", "ro")


def without(kind: str) -> Change:
    def change(b: Bundle) -> None:
        b.without_namespace(kind)
        if kind == "uts":
            b.config.pop("hostname", None)
        if kind in ("network", "user"):
            b.linux["maskedPaths"] = MASKED

    return change


def process(**what: object) -> Change:
    return lambda b: b.process.update(what)


def linux(**what: object) -> Change:
    return lambda b: b.linux.update(what)


def mounted(destination: str, source: str, *options: str, kind: str = "bind") -> Change:
    return lambda b: b.mount(destination, source, *options, kind=kind)


def volume(*options: str) -> Change:
    def change(b: Bundle) -> None:
        directory = b.directory / "volume"
        directory.mkdir()
        (directory / "file").write_text("x\n")
        b.mount("/var", str(directory), *options)

    return change


def both(*changes: Change) -> Change:
    def change(b: Bundle) -> None:
        for one in changes:
            one(b)

    return change


def capabilities(**sets: list[str]) -> Change:
    return process(capabilities=sets)


def user_namespace(b: Bundle) -> None:
    b.user_namespace()


def no_dev(b: Bundle) -> None:
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]


def read_only_dev(b: Bundle) -> None:
    next(m for m in b.config["mounts"] if m["destination"] == "/dev")["options"].append("ro")


ALL = ["CAP_KILL", "CAP_NET_BIND_SERVICE"]
RULE = {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
FUSE: Config = {"path": "/dev/probe-fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o640, "uid": 7, "gid": 8}
MAPPINGS = [{"containerID": 0, "hostID": 100000, "size": 1000}, {"containerID": 5000, "hostID": 200000, "size": 10}]

#: The short form: one of each kind.
SHORT: dict[str, Change] = {
    "plain": lambda b: None,
    "docker": engine,
    "kubernetes": kubernetes,
    "terminal": process(terminal=True),
    "user namespace": user_namespace,
    "no network namespace": without("network"),
    "a user": process(user={"uid": 1000, "gid": 1000, "additionalGids": [5, 6], "umask": 0o27}),
}

LONG: dict[str, Change] = {
    "podman": podman,
    "docker with a terminal": lambda b: engine(b, terminal=True),
    "docker without new privileges": lambda b: engine(b, nnp=True),
    "docker, cgroups to write to": lambda b: engine(b, cgroup="rw"),
    "docker in a user namespace": both(engine, user_namespace),
    **{f"no {kind} namespace": without(kind) for kind in ("ipc", "uts", "cgroup", "pid")},
    "no namespace but mount": both(*(without(kind) for kind in ("network", "ipc", "uts", "cgroup", "pid"))),
    "a time namespace": both(
        lambda b: b.namespace("time"),
        linux(timeOffsets={"monotonic": {"secs": 100}, "boottime": {"secs": 200, "nanosecs": 5}}),
    ),
    "user namespace of two ranges": both(user_namespace, linux(uidMappings=MAPPINGS, gidMappings=MAPPINGS)),
    "user namespace and a user": both(user_namespace, process(user={"uid": 1000, "gid": 1000})),
    "user namespace and a terminal": both(user_namespace, process(terminal=True)),
    "no capabilities": capabilities(),
    "capabilities unsaid": lambda b: b.process.pop("capabilities"),
    "capabilities of root": lambda b: b.capabilities(*DOCKER_CAPABILITIES, "CAP_SYS_ADMIN", "CAP_NET_ADMIN"),
    "inheritable capabilities": capabilities(bounding=ALL, effective=ALL, permitted=ALL, inheritable=ALL),
    "ambient capabilities": both(
        capabilities(bounding=ALL, effective=ALL, permitted=ALL, inheritable=ALL, ambient=ALL),
        process(user={"uid": 1000, "gid": 1000}),
    ),
    "a user's capabilities": both(
        capabilities(bounding=ALL, effective=ALL, permitted=ALL), process(user={"uid": 1000, "gid": 1000})
    ),
    "new privileges": process(noNewPrivileges=False),
    "a user, a terminal": process(user={"uid": 1000, "gid": 1000}, terminal=True),
    "a terminal of a size": process(terminal=True, consoleSize={"height": 33, "width": 111}),
    **{
        f"propagation {kind}": linux(rootfsPropagation=kind)
        for kind in ("private", "slave", "shared", "rprivate", "rslave", "rshared")
    },
    "propagation unbindable": linux(rootfsPropagation="unbindable"),
    "read-only root": lambda b: b.config["root"].update(readonly=True),
    "read-only /dev": read_only_dev,
    "no mount on /dev": no_dev,
    "no masks": linux(maskedPaths=[], readonlyPaths=[]),
    "masks of files that are not there": linux(maskedPaths=["/no/such", "/etc/passwd"], readonlyPaths=["/no/such", "/etc"]),
    "a volume": volume("bind"),
    "a volume, rbind": volume("rbind", "rprivate"),
    "a volume, ro": volume("bind", "ro", "nosuid", "nodev", "noexec"),
    "a volume, rslave": volume("rbind", "rslave"),
    "a volume, rshared": volume("rbind", "rshared"),
    "a volume, unbindable": volume("bind", "unbindable"),
    "the host's /dev, rro": mounted("/var", "/dev", "rbind", "rro"),
    "tmpfs with options": mounted("/var", "tmpfs", "nosuid", "noexec", "mode=1750", "size=1m", "nr_inodes=77", kind="tmpfs"),
    "tmpfs on a path that is not there": mounted("/srv/a/b", "tmpfs", kind="tmpfs"),
    "a bound file": mounted("/etc/motd", "/etc/passwd", "bind", "ro"),
    "cgroup tree": mounted("/sys/fs/cgroup", "cgroup", "ro", kind="cgroup"),
    "cgroup tree without its namespace": both(without("cgroup"), mounted("/sys/fs/cgroup", "cgroup", "ro", kind="cgroup")),
    "limits": process(
        rlimits=[
            {"type": f"RLIMIT_{name}", "soft": 7, "hard": 9}
            for name in ("CORE", "NOFILE", "MSGQUEUE", "SIGPENDING", "LOCKS")
        ]
    ),
    "no limits said": process(rlimits=[]),
    "oom score": process(oomScoreAdj=777),
    "umask": process(user={"uid": 0, "gid": 0, "umask": 0o77}),
    "nice": process(scheduler={"policy": "SCHED_OTHER", "nice": 7}),
    "scheduler batch": process(scheduler={"policy": "SCHED_BATCH"}),
    "io priority": process(ioPriority={"class": "IOPRIO_CLASS_BE", "priority": 6}),
    "personality": linux(personality={"domain": "LINUX32"}),
    "sysctls": linux(sysctl={"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "11", "net.ipv4.ip_default_ttl": "65"}),
    "host and domain": lambda b: b.config.update(hostname="a.b-c", domainname="d.e"),
    "no environment": process(env=[]),
    "an environment": process(env=["A=b", "A=c", "HOME=/h", "E=", "PATH=/bin", "LANG=C"]),
    "no home": process(env=["PATH=/bin"], user={"uid": 54321, "gid": 5}),
    "a directory that is not there": process(cwd="/srv/made/here"),
    "a device": both(linux(devices=[FUSE]), lambda b: b.linux["resources"]["devices"].append(RULE)),
    "all devices": linux(resources={"devices": [{"allow": True, "access": "rwm"}]}),
    "no rules for devices": linux(resources={}),
    "a filter": linux(seccomp=engine_profile()),
    "a filter and new privileges": both(linux(seccomp=engine_profile()), process(noNewPrivileges=False)),
    "a filter that logs": linux(
        seccomp={
            "defaultAction": "SCMP_ACT_ALLOW",
            "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [{"names": ["swapon"], "action": "SCMP_ACT_ERRNO"}],
        }
    ),
    "annotations": lambda b: b.config.update(annotations={"a.b": "c"}),
}


def with_kind() -> Iterator[tuple[str, Change, bool]]:
    """(name, change, whether it belongs to the short form)"""
    for name, change in SHORT.items():
        yield name, change, True
    for name, change in LONG.items():
        yield name, change, False
