"""The whole config.json as models, for people: every mistake of a document at once, each with its JSON path.

The engine reads documents with :mod:`gpurun.oci.config`, which stops at the first mistake and costs a tenth of importing
this; :mod:`gpurun.oci.schema` says what the notation means.  Fields carry the specification's own names;
runtime-spec 1.3 (and what 1.2 had of intelRdt): config.md, config-linux.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from gpurun.oci.reader import INT64_MAX, INT64_MIN, UINT32_MAX, UINT64_MAX
from gpurun.oci.schema import Check, Field, Model


def _absolute(path: str) -> str:
    return "" if path.startswith("/") else f'"{path}" must be an absolute path'


def _not_empty(text: str) -> str:
    return "" if text else "must not be empty"


def _no_null(text: str) -> str:
    return "contains a null byte" if "\0" in text else ""


def _env(entry: str) -> str:
    name, equals, _ = entry.partition("=")
    return "" if equals and name else f'"{entry}" must be NAME=value'


def _version(text: str) -> str:
    major, *rest = text.partition("-")[0].partition("+")[0].split(".")
    if major != "1" or len(rest) != 2 or not all(r.isdecimal() for r in rest):
        return f'"{text}" is not a version of the specification, such as 1.2.0: `create` and runc accept it anyway'
    return ""


def _access(text: str) -> str:
    return "" if text and not set(text) - set("rwm") else f'"{text}" must be made of r, w and m'


Text = Annotated[str, Check(_no_null)]
Path = Annotated[Text, Check(_absolute)]
Needed = Annotated[Text, Check(_not_empty)]
Env = Annotated[Text, Check(_env)]
Int = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
Uint16 = Annotated[int, Field(ge=0, le=65535)]
Uint32 = Annotated[int, Field(ge=0, le=UINT32_MAX)]
Uint64 = Annotated[int, Field(ge=0, le=UINT64_MAX)]


class Root(Model):
    path: Needed
    readonly: bool = False


class ConsoleSize(Model):
    height: Uint16
    width: Uint16


class User(Model):
    uid: Uint32 = 0
    gid: Uint32 = 0
    umask: Annotated[int, Field(ge=0, le=0o7777)] | None = None
    additionalGids: list[Uint32] = []
    username: Text = ""


class Capabilities(Model):
    bounding: list[Text] = []
    effective: list[Text] = []
    inheritable: list[Text] = []
    permitted: list[Text] = []
    ambient: list[Text] = []


class Rlimit(Model):
    type: Literal[
        "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_RSS", "RLIMIT_NPROC",
        "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_AS", "RLIMIT_LOCKS", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE",
        "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
    ]  # fmt: skip
    soft: Uint64
    hard: Uint64


SchedulerFlag = Literal[
    "SCHED_FLAG_RESET_ON_FORK", "SCHED_FLAG_RECLAIM", "SCHED_FLAG_DL_OVERRUN", "SCHED_FLAG_KEEP_POLICY",
    "SCHED_FLAG_KEEP_PARAMS", "SCHED_FLAG_UTIL_CLAMP_MIN", "SCHED_FLAG_UTIL_CLAMP_MAX",
]  # fmt: skip


class Scheduler(Model):
    policy: Literal[
        "SCHED_OTHER", "SCHED_FIFO", "SCHED_RR", "SCHED_BATCH", "SCHED_ISO", "SCHED_IDLE", "SCHED_DEADLINE"
    ]  # fmt: skip
    nice: Annotated[int, Field(ge=-20, le=19)] = 0
    priority: Annotated[int, Field(ge=0, le=99)] = 0
    flags: list[SchedulerFlag] = []
    runtime: Uint64 = 0
    deadline: Uint64 = 0
    period: Uint64 = 0


class IOPriority(Model):
    class_: Literal["IOPRIO_CLASS_RT", "IOPRIO_CLASS_BE", "IOPRIO_CLASS_IDLE"] = Field(alias="class")  # type: ignore[assignment]
    priority: Annotated[int, Field(ge=0, le=7)] = 0


class ExecCPUAffinity(Model):
    initial: Text = ""
    final: Text = ""


class Process(Model):
    args: Annotated[list[Text], Field(min_length=1)]
    cwd: Path
    env: list[Env] = []
    terminal: bool = False
    consoleSize: ConsoleSize | None = None
    user: User = User()
    capabilities: Capabilities | None = None
    rlimits: list[Rlimit] = []
    noNewPrivileges: bool = False
    apparmorProfile: Text = ""
    selinuxLabel: Text = ""
    oomScoreAdj: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    scheduler: Scheduler | None = None
    ioPriority: IOPriority | None = None
    execCPUAffinity: ExecCPUAffinity | None = None
    commandLine: Text = ""  # Windows


class IdMapping(Model):
    containerID: Uint32
    hostID: Uint32
    size: Annotated[int, Field(ge=1, le=UINT32_MAX)]


class Mount(Model):
    destination: Needed
    type: Text = ""
    source: Text = ""
    options: list[Text] = []
    uidMappings: list[IdMapping] = []
    gidMappings: list[IdMapping] = []


class Hook(Model):
    path: Path
    args: list[Text] = []
    env: list[Env] = []
    timeout: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None


class Hooks(Model):
    prestart: list[Hook] = []
    createRuntime: list[Hook] = []
    createContainer: list[Hook] = []
    startContainer: list[Hook] = []
    poststart: list[Hook] = []
    poststop: list[Hook] = []


class Namespace(Model):
    type: Literal["pid", "network", "mount", "ipc", "uts", "user", "cgroup", "time"]
    path: Path | Literal[""] = ""


class Device(Model):
    type: Literal["c", "b", "u", "p"]
    path: Path
    major: Int = 0
    minor: Int = 0
    fileMode: Uint32 | None = None
    uid: Uint32 | None = None
    gid: Uint32 | None = None


class NetDevice(Model):
    name: Text = ""


class TimeOffset(Model):
    secs: Int = 0
    nanosecs: Annotated[int, Field(ge=0, le=999_999_999)] = 0


class TimeOffsets(Model):
    monotonic: TimeOffset | None = None
    boottime: TimeOffset | None = None


class DeviceRule(Model):
    allow: bool
    type: Literal["a", "b", "c", ""] = ""
    major: Int | None = None
    minor: Int | None = None
    access: Annotated[str, Check(_access)]


class Memory(Model):
    limit: Int | None = None
    reservation: Int | None = None
    swap: Int | None = None
    kernel: Int | None = None
    kernelTCP: Int | None = None
    swappiness: Uint64 | None = None
    disableOOMKiller: bool | None = None
    useHierarchy: bool | None = None
    checkBeforeUpdate: bool | None = None


class Cpu(Model):
    shares: Uint64 | None = None
    quota: Int | None = None
    burst: Uint64 | None = None
    period: Uint64 | None = None
    realtimeRuntime: Int | None = None
    realtimePeriod: Uint64 | None = None
    cpus: Text = ""
    mems: Text = ""
    idle: Int | None = None


class Pids(Model):
    limit: Int | None = None


class WeightDevice(Model):
    major: Int
    minor: Int
    weight: Uint16 | None = None
    leafWeight: Uint16 | None = None


class ThrottleDevice(Model):
    major: Int
    minor: Int
    rate: Uint64


class BlockIO(Model):
    weight: Uint16 | None = None
    leafWeight: Uint16 | None = None
    weightDevice: list[WeightDevice] = []
    throttleReadBpsDevice: list[ThrottleDevice] = []
    throttleWriteBpsDevice: list[ThrottleDevice] = []
    throttleReadIOPSDevice: list[ThrottleDevice] = []
    throttleWriteIOPSDevice: list[ThrottleDevice] = []


class HugepageLimit(Model):
    pageSize: Needed
    limit: Uint64


class Priority(Model):
    name: Text
    priority: Uint32


class Network(Model):
    classID: Uint32 | None = None
    priorities: list[Priority] = []


class Rdma(Model):
    hcaHandles: Uint32 | None = None
    hcaObjects: Uint32 | None = None


class Resources(Model):
    devices: list[DeviceRule] = []
    memory: Memory | None = None
    cpu: Cpu | None = None
    pids: Pids | None = None
    blockIO: BlockIO | None = None
    hugepageLimits: list[HugepageLimit] = []
    network: Network | None = None
    rdma: dict[str, Rdma] = {}
    unified: dict[str, Text] = {}


SeccompAction = Literal[
    "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP", "SCMP_ACT_ERRNO", "SCMP_ACT_TRACE",
    "SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY",
]  # fmt: skip


class SeccompArg(Model):
    index: Annotated[int, Field(ge=0, le=5)]
    value: Uint64
    valueTwo: Uint64 = 0
    op: Literal[
        "SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"
    ]  # fmt: skip


class SeccompSyscall(Model):
    names: Annotated[list[Text], Field(min_length=1)]
    action: SeccompAction
    errnoRet: Uint32 | None = None
    args: list[SeccompArg] = []


class Seccomp(Model):
    defaultAction: SeccompAction
    defaultErrnoRet: Uint32 | None = None
    flags: list[Text] = []
    listenerPath: Text = ""
    listenerMetadata: Text = ""
    architectures: list[Text] = []
    syscalls: list[SeccompSyscall] = []


class IntelRdt(Model):
    closID: Text = ""
    l3CacheSchema: Text = ""
    memBwSchema: Text = ""
    schemata: list[Text] = []
    enableCMT: bool = False
    enableMBM: bool = False
    enableMonitoring: bool = False


class Personality(Model):
    domain: Literal["LINUX", "LINUX32"]
    flags: list[Text] = []


class MemoryPolicy(Model):
    mode: Literal[
        "MPOL_DEFAULT", "MPOL_PREFERRED", "MPOL_BIND", "MPOL_INTERLEAVE", "MPOL_LOCAL", "MPOL_PREFERRED_MANY",
        "MPOL_WEIGHTED_INTERLEAVE",
    ]  # fmt: skip
    nodes: Text = ""
    flags: list[Literal["MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES", "MPOL_F_NUMA_BALANCING"]] = []


class Linux(Model):
    namespaces: list[Namespace] = []
    uidMappings: list[IdMapping] = []
    gidMappings: list[IdMapping] = []
    timeOffsets: TimeOffsets | None = None
    devices: list[Device] = []
    netDevices: dict[str, NetDevice] = {}
    cgroupsPath: Text = ""
    resources: Resources | None = None
    rootfsPropagation: Literal[
        "", "shared", "slave", "private", "unbindable", "rshared", "rslave", "rprivate", "runbindable"
    ] = ""  # fmt: skip
    maskedPaths: list[Path] = []
    readonlyPaths: list[Path] = []
    sysctl: dict[str, Text] = {}
    mountLabel: Text = ""
    seccomp: Seccomp | None = None
    intelRdt: IntelRdt | None = None
    personality: Personality | None = None
    memoryPolicy: MemoryPolicy | None = None


class Config(Model):
    ociVersion: Annotated[Text, Check(_version)]
    root: Root
    process: Process
    hostname: Text = ""
    domainname: Text = ""
    mounts: list[Mount] = []
    hooks: Hooks | None = None
    annotations: dict[str, Text] = {}
    linux: Linux | None = None
    # Of other platforms; a config for several may have them.
    solaris: dict[str, Any] | None = None
    windows: dict[str, Any] | None = None
    vm: dict[str, Any] | None = None
    zos: dict[str, Any] | None = None
    freebsd: dict[str, Any] | None = None
