"""A seccomp plan → BPF, through libseccomp; with gpurun's own instructions before it that answer ENOSYS to calls newer
than the profile.

Why these: a C library tries a new system call and falls back on the old one when it gets ENOSYS.  A profile written before
the call existed says EPERM to it by default, which is taken as the answer.
"""

from __future__ import annotations

from _struct import pack

from gpurun.errors import ConfigError, GpurunError, oserror_text
from gpurun.linux import libseccomp
from gpurun.linux.libseccomp import NR_SCMP_ERROR, SCMP_FLTATR_CTL_OPTIMIZE, Filter, Library
from gpurun.linux.seccomp import INSTRUCTION_SIZE, MAX_INSTRUCTIONS
from gpurun.record import Record
from gpurun.security.seccomp import ACTIONS, ARM, ENOSYS, X32, X86_64, SeccompPlan

#: From so many names on a search tree is made of them, where a list would be gone through.
_TREE_FROM = 32
_BINARY_TREE = 2

_X32_BIT = 0x40000000  # __X32_SYSCALL_BIT
#: __ARM_NR_BASE: from here on are 32-bit ARM's own calls (cacheflush, set_tls), whose numbers do not say how new they are.
_ARM_PRIVATE = 0x0F0000
_RET_ENOSYS = ACTIONS["SCMP_ACT_ERRNO"] | ENOSYS

# Classic BPF (linux/filter.h)
_LD_W_ABS = 0x20
_JA = 0x05
_JEQ_K = 0x15
_JGT_K = 0x25
_JGE_K = 0x35
_JSET_K = 0x45
_RET_K = 0x06
# struct seccomp_data
_NR, _ARCH = 0, 4


class Compiled(Record):
    """*program* is an array of struct sock_filter; *unknown*: names that libseccomp has no number for; *newer_get_default*:
    calls newer than the profile get its default action, because there was no room for the instructions that say ENOSYS."""

    program: bytes
    unknown: tuple[str, ...]
    newer_get_default: bool = False


def load_library(where: str, path: str = "") -> Library:
    """libseccomp; raises :class:`GpurunError` saying how to get it."""
    try:
        return Library(path)
    except OSError as e:
        raise GpurunError(
            f"{where}: the library {libseccomp.SONAME} is needed to compile a seccomp profile and cannot be loaded"
            f" ({oserror_text(e)}): install libseccomp 2.5 or newer (Debian: libseccomp2)"
        ) from None


def compile_plan(plan: SeccompPlan, library: Library) -> Compiled:
    """The program of *plan*; raises :class:`ConfigError` for what libseccomp refuses, and for what is too long.

    A long profile is made shorter in two ways that change nothing, or little: without the search tree, which is quicker to
    go through and takes more instructions than the list, and at last without :func:`enosys_stub`.
    """
    newest = enosys_stub(_newest_calls(plan, library)) if plan.enosys else b""
    room = MAX_INSTRUCTIONS * INSTRUCTION_SIZE
    as_tree = sum([len(rule.names) for rule in plan.rules]) > _TREE_FROM
    program, unknown = _filter(plan, library, as_tree)
    if as_tree and len(newest) + len(program) > room:
        program, unknown = _filter(plan, library, False)
    if len(newest) + len(program) <= room:
        return Compiled(newest + program, unknown)
    if len(program) <= room:
        return Compiled(program, unknown, True)
    size = len(program) // INSTRUCTION_SIZE
    raise ConfigError(
        plan.where, f"the profile makes {size} BPF instructions, the kernel takes {MAX_INSTRUCTIONS}: shorten it"
    )


def _filter(plan: SeccompPlan, library: Library, as_tree: bool) -> tuple[bytes, tuple[str, ...]]:
    """(program that libseccomp makes, names that it does not know)."""
    try:
        made = Filter(library, plan.default_action)
    except OSError:
        raise ConfigError(f"{plan.where}.defaultAction", "libseccomp or this kernel does not know the action") from None
    try:
        unknown = _fill(plan, library, made, as_tree)
        return made.export(), unknown
    except OSError as e:
        raise ConfigError(plan.where, f"libseccomp cannot make the filter: {oserror_text(e)}") from None
    finally:
        made.release()


def _fill(plan: SeccompPlan, library: Library, made: Filter, as_tree: bool) -> tuple[str, ...]:
    """Put architectures and rules into the filter; returns the names that libseccomp does not know."""
    for token in plan.architectures:
        try:
            made.add_arch(token)
        except OSError:
            raise ConfigError(
                f"{plan.where}.architectures", f"libseccomp {library.version()} does not know the architecture {token:#x}"
            ) from None
    if as_tree:
        try:
            made.set_attribute(SCMP_FLTATR_CTL_OPTIMIZE, _BINARY_TREE)
        except OSError:
            pass  # libseccomp before 2.5: the filter is slower, and does the same
    unknown = []
    for rule in plan.rules:
        for name in rule.names:
            number = library.resolve(name)
            if number == NR_SCMP_ERROR:
                unknown.append(name)  # of a newer kernel or another architecture: profiles list what may come
                continue
            for conditions in rule.conditions or ((),):
                try:
                    made.add_rule(rule.action, number, conditions)
                except OSError as e:
                    raise ConfigError(rule.where, f"libseccomp refuses the rule for {name}: {oserror_text(e)}") from None
    return tuple(unknown)


def _newest_calls(plan: SeccompPlan, library: Library) -> dict[int, int]:
    """The highest number that the profile names, for each of its architectures where it names any (but 0)."""
    names = {name for rule in plan.rules for name in rule.names}.union(plan.skipped)
    newest = {}
    for token in plan.architectures:
        numbers = [library.resolve(name, token) for name in names]
        if token == ARM:
            numbers = [number for number in numbers if number < _ARM_PRIVATE]
        newest[token] = max(numbers, default=0)
    return {token: number for token, number in newest.items() if number > 0}


def _insn(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return pack("HBBI", code, jump_true, jump_false, k)


def enosys_stub(newest: dict[int, int]) -> bytes:
    """Instructions to put before a filter: a call whose number is above ``newest[its architecture]`` gets ENOSYS, all others
    go on to the filter.  x32 has the kernel's architecture of x86_64, and a bit in its numbers; 32-bit ARM's private calls
    are above all others, and the filter's."""
    sections = []
    for token, number in newest.items():
        if token == X32:
            continue
        above = _insn(_JGT_K, number, 0, 1) + _insn(_RET_K, _RET_ENOSYS)
        body = _insn(_LD_W_ABS, _NR)
        if token == X86_64 and X32 in newest:
            body += _insn(_JSET_K, _X32_BIT, 0, 3)
            body += _insn(_JGT_K, newest[X32], 0, 1) + _insn(_RET_K, _RET_ENOSYS) + _insn(_JA, 2)
        if token == ARM:
            body += _insn(_JGE_K, _ARM_PRIVATE, 2, 0)
        sections.append((token, body + above))
    program = b""
    for token, body in reversed(sections):
        # Built from its end: where a section ends, the jump over all that follows is known.
        body += _insn(_JA, len(program) // INSTRUCTION_SIZE)
        program = _insn(_JEQ_K, token, 0, len(body) // INSTRUCTION_SIZE) + body + program
    return _insn(_LD_W_ABS, _ARCH) + program if program else b""
