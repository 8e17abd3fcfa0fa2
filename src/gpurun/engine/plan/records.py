"""What the processes inside the container are sent: all that they do, with nothing left to decide."""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import ContainerEdits
    from gpurun.ns.mount_plan import DeviceStep, MountStep
    from gpurun.oci.config import OciHook
    from gpurun.security.capabilities import CapabilityMasks


class ExecPlan(Record):
    """What exec's process does; it is sent to it as it stands.  *namespaces*: CLONE_NEW* flags of those to join."""

    id: str
    process: ProcessPlan
    namespaces: int
    rootfs: str  # where the container has no mount namespace of its own: what its root is
    session_keyring: str  # the name of the container's; "" where it has none of its own
    preserved: tuple[int, ...] = ()  # descriptors of the caller's that the process inherits
    affinity: tuple[bytes, bytes] = (b"", b"")  # CPU masks before and after the cgroup is entered
    root: tuple[int, int] | None = None  # (device, inode) of the init's root directory, if create gave it that


class InitPlan(Record):
    """What the container's init does, in the order of the fields; it is sent to it as it stands."""

    id: str
    bundle: str
    rootfs: str
    mount_namespace: bool
    user_namespace: bool
    new_network: bool
    propagation: tuple[int, bool]
    no_pivot: bool
    mounts: tuple[MountStep, ...]
    devices: tuple[DeviceStep, ...]
    dev_is_bind: bool
    edits: ContainerEdits
    readonly: bool
    hostname: str
    domainname: str
    sysctl: tuple[tuple[str, str], ...]
    readonly_paths: tuple[str, ...]
    masked_paths: tuple[str, ...]
    process: ProcessPlan
    parent_hooks: bool  # whether the parent runs hooks before pivot_root
    create_container: tuple[OciHook, ...]
    start_container: tuple[OciHook, ...]
    annotations: str  # JSON text
    cgroup_path: str
    cgroup_view: str  # the host's cgroup tree, to be bound where the container has no cgroup namespace; else ""
    session_keyring: str  # its name; "" for none of its own
    preserved: tuple[int, ...]  # descriptors from 3 on that the process is to inherit
    mount_label: str = ""  # the SELinux context of file systems that are made for it, besides those of its mounts


class Knobs(Record):
    """Scheduling and memory placement; what is None is left as it was inherited.  See engine/plan/scheduling.py."""

    #: (policy, flags, nice, priority, runtime, deadline, period) as sched_setattr(2) takes them; times in nanoseconds
    scheduler: tuple[int, int, int, int, int, int, int] | None = None
    io_priority: int | None = None  # as ioprio_set(2) takes it
    personality: int | None = None
    memory_policy: tuple[int, int] | None = None  # (MPOL_* with its flags, bit mask of nodes)


class ProcessPlan(Record):
    """Who runs what, and as whom.  *env* has unique names, in order; HOME is added by the init when it is missing."""

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] | None = ()  # None: the caller's
    umask: int = 0o022
    capabilities: CapabilityMasks | None = None
    no_new_privileges: bool = False
    oom_score_adj: int | None = None
    rlimits: tuple[tuple[int, int, int], ...] = ()  # (resource, soft, hard), set by the parent
    last_cap: int = 40
    terminal: bool = False
    console_size: tuple[int, int] | None = None  # (rows, columns)
    knobs: Knobs | None = None
    apparmor_profile: str = ""
    selinux_label: str = ""
    #: (program, flags for seccomp(2), CAN_WAIT and CAN_CLOSE): installed by the system call before execve, or sooner, see
    #: engine/caller/seccomp.py and engine/inside/enter_process.py
    seccomp: tuple[bytes, int] | None = None
