"""Device rules as an eBPF program (BPF_PROG_TYPE_CGROUP_DEVICE): pure, nothing is loaded here.

The rules of ``linux.resources.devices`` are written for cgroup v1's device controller, whose state is a default verdict and
a set of exceptions; :func:`emulate` walks the rules as v1 did and :func:`compile_filter` writes that state as instructions.

What differs from v1, and why: a deny that covers more than an earlier, narrower allow takes that away (v1 silently keeps
it; the specification applies rules in order), and a deny that would have to punch a hole into a broader allow is an error
(v1 silently ignores it; so does runc refuse).  Neither can leave a device open that the document closes.

Reference: kernel security/device_cgroup.c, include/uapi/linux/bpf.h (struct bpf_cgroup_dev_ctx), instruction-set.rst.
"""

from __future__ import annotations

from _struct import pack

from gpurun.errors import ConfigError
from gpurun.oci.resources import DeviceRule
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# struct bpf_cgroup_dev_ctx: access_type is type | access << 16
BPF_DEVCG_ACC_MKNOD, BPF_DEVCG_ACC_READ, BPF_DEVCG_ACC_WRITE = 1, 2, 4
BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR = 1, 2

_ACCESS = {"m": BPF_DEVCG_ACC_MKNOD, "r": BPF_DEVCG_ACC_READ, "w": BPF_DEVCG_ACC_WRITE}
_TYPE = {"b": BPF_DEVCG_DEV_BLOCK, "c": BPF_DEVCG_DEV_CHAR}
_ALL = BPF_DEVCG_ACC_MKNOD | BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE

# Every container can make nodes, has the standard ones of /dev, ptys and tun, as runc gives them.
_MKNOD = (DeviceRule(True, "c", None, None, "m"), DeviceRule(True, "b", None, None, "m"))
_STANDARD = (
    ("/dev/null", DeviceRule(True, "c", 1, 3, "rwm")),
    ("/dev/random", DeviceRule(True, "c", 1, 8, "rwm")),
    ("/dev/full", DeviceRule(True, "c", 1, 7, "rwm")),
    ("/dev/tty", DeviceRule(True, "c", 5, 0, "rwm")),
    ("/dev/zero", DeviceRule(True, "c", 1, 5, "rwm")),
    ("/dev/urandom", DeviceRule(True, "c", 1, 9, "rwm")),
)
_TERMINALS_AND_TUN = (
    DeviceRule(True, "c", 136, None, "rwm"),  # /dev/pts
    DeviceRule(True, "c", 5, 2, "rwm"),  # /dev/ptmx
    DeviceRule(True, "c", 10, 200, "rwm"),  # /dev/net/tun
)
_OURS = (*_MKNOD, *[rule for _, rule in _STANDARD], *_TERMINALS_AND_TUN)


class DeviceException(Record):
    """Devices for which the verdict is the opposite of the default; *access* is a mask of BPF_DEVCG_ACC_*."""

    major: int | None
    minor: int | None
    type: str
    access: int


class DeviceFilter(Record):
    """The state of v1's device controller."""

    default_allow: bool
    exceptions: tuple[DeviceException, ...]

    def enforces_nothing(self) -> bool:
        """Whether every access is allowed: a container that may do all needs no program."""
        return self.default_allow and not self.exceptions


def container_rules(rules: tuple[DeviceRule, ...], device_paths: Collection[str] = ()) -> tuple[DeviceRule, ...]:
    """*rules* of the document and after them what every container may use.

    *device_paths* are the paths of ``linux.devices``: a standard device that is listed there is the document's business,
    and only its own rules say what may be done with it.
    """
    standard = [rule for path, rule in _STANDARD if path not in device_paths]
    return (*rules, *_MKNOD, *standard, *_TERMINALS_AND_TUN)


def describe_rule(rule: DeviceRule) -> str:
    """The rule as v1's devices.allow writes it: ``c 195:255 rw``, ``a *:* rwm``."""
    if rule.type == "a":
        return "a *:* rwm"
    major, minor = ["*" if number is None else str(number) for number in (rule.major, rule.minor)]
    return f"{rule.type} {major}:{minor} {rule.access}"


def emulate(rules: tuple[DeviceRule, ...], json_path: str = "linux.resources.devices") -> DeviceFilter:
    """The verdicts after all *rules*, applied in order to a container that may use nothing.

    Raises :class:`ConfigError` naming the rule that v1's model cannot express.
    """
    default_allow = False
    exceptions: dict[tuple[str, int | None, int | None], int] = {}
    for index, rule in enumerate(rules):
        if rule.type == "a":  # whatever else such a rule says, it is about every device and every access
            default_allow = rule.allow
            exceptions.clear()
            continue
        key = (rule.type, rule.major, rule.minor)
        access = 0
        for letter in rule.access:
            access |= _ACCESS[letter]
        if not access:
            continue
        if rule.allow is not default_allow:
            exceptions[key] = exceptions.get(key, 0) | access
            continue
        # A rule of ours has no place in the document: the error is then about the rules as a whole.
        _refuse_hole(exceptions, rule, access, json_path if rule in _OURS else f"{json_path}[{index}]")
        covered = [k for k in exceptions if k == key or (not rule.allow and _covers(key, k))]
        for k in covered:
            exceptions[k] &= ~access
            if not exceptions[k]:
                del exceptions[k]
    made = [DeviceException(major, minor, kind, access) for (kind, major, minor), access in exceptions.items()]
    return DeviceFilter(default_allow, tuple(sorted(made, key=_order)))


def _covers(wide: tuple[str, int | None, int | None], narrow: tuple[str, int | None, int | None]) -> bool:
    return wide[0] == narrow[0] and wide[1] in (None, narrow[1]) and wide[2] in (None, narrow[2])


def _refuse_hole(
    exceptions: dict[tuple[str, int | None, int | None], int], rule: DeviceRule, access: int, json_path: str
) -> None:
    for kind, major, minor in exceptions:
        overlaps = kind == rule.type and _meet(major, rule.major) and _meet(minor, rule.minor)
        wider = (major is None and rule.major is not None) or (minor is None and rule.minor is not None)
        if overlaps and wider and exceptions[kind, major, minor] & access:
            held = "".join([letter for letter in "rwm" if exceptions[kind, major, minor] & _ACCESS[letter]])
            earlier = describe_rule(DeviceRule(not rule.allow, kind, major, minor, held))
            raise ConfigError(
                json_path,
                f'cannot punch hole in existing wildcard rule: "{describe_rule(rule)}" is part of "{earlier}", which an '
                f"earlier rule {'denies' if rule.allow else 'allows'}; list the devices one by one instead",
            )


def _meet(one: int | None, other: int | None) -> bool:
    return one is None or other is None or one == other


def _order(exception: DeviceException) -> tuple[int, int, str]:
    major = -1 if exception.major is None else exception.major
    minor = -1 if exception.minor is None else exception.minor
    return major, minor, exception.type


def device_program(rules: tuple[DeviceRule, ...], json_path: str = "linux.resources.devices") -> bytes:
    """The program that enforces *rules* (those of :func:`container_rules`), as an array of struct bpf_insn."""
    return compile_filter(emulate(rules, json_path))


# Opcodes: JMP32 (Linux 5.1) compares the lower half, so a number above 2**31 needs no second instruction.
_LDX_W, _MOV32_K, _MOV32_X, _AND32_K, _RSH32_K = 0x61, 0xB4, 0xBC, 0x54, 0x74
_JEQ32_K, _JNE32_K, _JNE32_X, _EXIT = 0x16, 0x56, 0x5E, 0x95
_JUMPS = (_JEQ32_K, _JNE32_K, _JNE32_X)
_R0, _R1, _TYPE_REG, _ACCESS_REG, _MAJOR_REG, _MINOR_REG = 0, 1, 2, 3, 4, 5


def compile_filter(devices: DeviceFilter) -> bytes:
    """*devices* as instructions: each block returns the opposite verdict or goes to the next block.

    An allowing exception must cover all of the requested access; a denying one stops a request that wants any of its
    access (``rw`` on a device that is denied ``w``), as in v1.  A block is for all exceptions of one major and access, so
    that many GPUs cost the kernel, which follows every way through a program before it takes it, little more than one.
    """
    instructions = [
        _insn(_LDX_W, _TYPE_REG, _R1, 0),
        _insn(_MOV32_X, _ACCESS_REG, _TYPE_REG),
        _insn(_AND32_K, _TYPE_REG, imm=0xFFFF),
        _insn(_RSH32_K, _ACCESS_REG, imm=16),
        _insn(_LDX_W, _MAJOR_REG, _R1, 4),
        _insn(_LDX_W, _MINOR_REG, _R1, 8),
    ]
    verdict = 0 if devices.default_allow else 1
    blocks: dict[tuple[str, int, int | None], list[int | None]] = {}
    for exception in devices.exceptions:
        blocks.setdefault((exception.type, exception.access, exception.major), []).append(exception.minor)
    for (kind, access, major), minors in blocks.items():
        instructions += _block(kind, access, major, [] if None in minors else minors, verdict)
    instructions += _return(1 - verdict)
    return b"".join(instructions)


def _block(kind: str, access: int, major: int | None, minors: list[int | None], verdict: int) -> list[bytes]:
    """*verdict* for the devices of that *kind* and *major* with one of *minors* (with any, when there are none)."""
    # (opcode, register, other register, immediate); jumps go to the end of the block, that of a minor to the verdict
    code = [(_JNE32_K, _TYPE_REG, 0, _TYPE[kind])]
    if access != _ALL:
        code += [(_MOV32_X, _R1, _ACCESS_REG, 0), (_AND32_K, _R1, 0, access)]
        code.append((_JNE32_X, _R1, _ACCESS_REG, 0) if verdict else (_JEQ32_K, _R1, 0, 0))
    if major is not None:
        code.append((_JNE32_K, _MAJOR_REG, 0, major))
    found = len(code) + len(minors)  # index of the first instruction of the verdict
    code += [(_JEQ32_K, _MINOR_REG, 0, minor) for minor in minors[:-1] if minor is not None]
    code += [(_JNE32_K, _MINOR_REG, 0, minor) for minor in minors[-1:] if minor is not None]
    made = []
    for at, (op, dst, src, imm) in enumerate(code):
        end = found if (op, dst) == (_JEQ32_K, _MINOR_REG) else found + 2
        made.append(_insn(op, dst, src, end - at - 1 if op in _JUMPS else 0, imm))
    return made + _return(verdict)


def _return(verdict: int) -> list[bytes]:
    return [_insn(_MOV32_K, _R0, imm=verdict), _insn(_EXIT)]


def _insn(opcode: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """struct bpf_insn: code, dst and src registers in one byte, offset, immediate."""
    return pack("=BBhI", opcode, dst | src << 4, off, imm)
