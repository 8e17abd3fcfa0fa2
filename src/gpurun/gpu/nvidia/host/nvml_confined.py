"""What the helper process takes from itself before it loads the driver's NVML: whatever asking a driver has no use for.

The library is the driver's, and gpurun trusts it with the GPUs, not with the host: it can read what it likes, open the
nodes of NVIDIA's devices, and answer. By capabilities(7), landlock(7) and seccomp(2), each as far as the host has it;
CAP_SYS_ADMIN stays, because the driver only lists the processes of a MIG device to a process that has it.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.gpu.host.reads import names_in
from gpurun.linux import landlock, seccomp
from gpurun.linux import process as lp
from gpurun.security.capabilities import NAMES
from gpurun.security.seccomp import ACTIONS, EPERM, OPERATORS, Rule, SeccompPlan
from gpurun.security.seccomp_compile import compile_plan, load_library

_KEPT_CAPABILITIES = 1 << NAMES.index("CAP_SYS_ADMIN")
_AF_UNIX = 1
#: Beside NVIDIA's own nodes.
_NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: What CAP_SYS_ADMIN, or being root, would let it do that Landlock does not cover; and ways round a filter.
_REFUSED = """acct add_key adjtimex bpf chmod chown chroot clock_adjtime clock_settime delete_module execve execveat fchmod
    fchmodat fchmodat2 fchown fchownat finit_module fremovexattr fsconfig fsetxattr fsmount fsopen fspick init_module
    io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lchown lremovexattr
    lsetxattr mknod mknodat mount mount_setattr move_mount open_by_handle_at open_tree perf_event_open pidfd_getfd
    pidfd_send_signal pivot_root process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot removexattr
    request_key setdomainname sethostname setns settimeofday setxattr swapoff swapon syslog umount2 unshare userfaultfd
    vhangup"""


def confine(cgroups: str = "") -> None:
    """Take the rights away, for good; what this kernel or host has no means for stays.

    *cgroups* is the root of the cgroup tree where files of it may be written: limits are set there.
    """
    posix.umask(0o077)
    keep = _KEPT_CAPABILITIES & lp.capget()[1]
    lp.capset(keep, keep, 0)
    lp.prctl(lp.PR_SET_NO_NEW_PRIVS, 1)
    _landlock(cgroups)
    _seccomp()


def _landlock(cgroups: str) -> None:
    nodes = [f"/dev/{name}" for name in names_in("/dev") if name.startswith("nvidia")]
    try:
        # A directory (nvidia-caps) gets what each file below it may have.
        kept = [(node, landlock.WRITE_FILE | landlock.IOCTL_DEV) for node in (*nodes, *_NODES)]
        kept += [(cgroups, landlock.WRITE_FILE | landlock.TRUNCATE)] if cgroups else []
        landlock.restrict(landlock.CHANGE, kept)
    except OSError:
        pass  # this process may have no Landlock: an outer filter, or too many layers of it


def _seccomp() -> None:
    refuse = ACTIONS["SCMP_ACT_ERRNO"] | EPERM
    other_families = (((0, OPERATORS["SCMP_CMP_NE"], _AF_UNIX, 0),),)
    rules = (Rule(tuple(_REFUSED.split()), refuse, (), ""), Rule(("socket",), refuse, other_families, ""))
    name = "NVML's helper process"
    plan = SeccompPlan(name, ACTIONS["SCMP_ACT_ALLOW"], (), rules, False, (), 0, False)
    try:
        seccomp.install(compile_plan(plan, load_library(name)).program, 0)
    except (GpurunError, OSError):
        pass  # no libseccomp on this host, or no filters in its kernel
