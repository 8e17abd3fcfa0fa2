"""Capabilities: names → masks (pure), and the calls that set them (capabilities(7))."""

from __future__ import annotations

from gpurun.errors import StepError
from gpurun.linux import process as lp
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Capabilities

#: The names in the order of their numbers (uapi/linux/capability.h).
NAMES = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
]


class CapabilityMasks(Record):
    """The five sets as bit masks."""

    bounding: int
    effective: int
    inheritable: int
    permitted: int
    ambient: int


def capability_masks(capabilities: Capabilities, last_cap: int) -> tuple[CapabilityMasks, tuple[str, ...]]:
    """The masks of *capabilities*, and warnings, in runc's words.

    Names that are unknown or that this kernel lacks (> *last_cap*) are left out, because profiles list capabilities of newer
    kernels; so are ambient ones that are not permitted and inheritable as well, which the kernel would refuse
    (capabilities(7)).  Returns (masks, warnings).
    """
    unknown: set[str] = set()

    def mask(names: tuple[str, ...]) -> int:
        bits = 0
        for name in names:
            number = NAMES.index(name) if name in NAMES else -1
            if 0 <= number <= last_cap:
                bits |= 1 << number
            else:
                unknown.add(name)
        return bits

    c = capabilities
    inheritable, permitted, ambient = mask(c.inheritable), mask(c.permitted), mask(c.ambient)
    able = ambient & inheritable & permitted
    masks = CapabilityMasks(mask(c.bounding), mask(c.effective), inheritable, permitted, able)
    warnings = []
    if unknown:
        warnings.append(f"ignoring unknown or unavailable capabilities: [{' '.join(sorted(unknown))}]")
    refused = _names(ambient & ~able)
    if refused:
        word = "capability" if len(refused) == 1 else "capabilities"
        warnings.append(f"can't raise ambient {word} {', '.join(refused)}: operation not permitted")
    return masks, tuple(warnings)


def _names(mask: int) -> list[str]:
    return [name for number, name in enumerate(NAMES) if mask >> number & 1]


def drop_bounding(keep: int, last_cap: int) -> None:
    """Drop from the bounding set what *keep* does not have; needs CAP_SETPCAP, so it comes before the user changes."""
    for number in range(last_cap + 1):
        if not keep >> number & 1:
            lp.prctl(lp.PR_CAPBSET_DROP, number)


def set_capabilities(masks: CapabilityMasks) -> None:
    """capset(2), then the ambient set; an ambient capability that the kernel refuses all the same (securebits) is not
    there, as in runc.  Raises :class:`StepError` for one that this process itself lacks.
    """
    try:
        lp.capset(masks.effective, masks.permitted, masks.inheritable)
    except OSError as e:
        missing = ", ".join(_names((masks.permitted | masks.effective) & ~lp.capget()[1]))
        raise StepError("unable to apply caps: the runtime itself lacks", missing or "what is asked for", e.errno) from None
    lp.prctl(lp.PR_CAP_AMBIENT, lp.PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(64):
        if masks.ambient >> number & 1:
            try:
                lp.prctl(lp.PR_CAP_AMBIENT, lp.PR_CAP_AMBIENT_RAISE, number)
            except PermissionError:
                pass
