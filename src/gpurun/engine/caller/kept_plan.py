"""The plan of exec that is kept for the compiled front (launcher/front_exec.c): what is the same at each exec.

An ordinary exec that is done here leaves it in the state directory.  The front goes by it as long as the files that it was
made from are the same ones; it decides nothing itself.

The file: the :data:`NUMBERS`, then the sizes of the :data:`TEXTS`, each as 64 bits; then the texts, each ended by one to
eight zero bytes, so that the next one begins at a multiple of eight.
"""

from __future__ import annotations

import posix
import sys
from _struct import pack

from gpurun.errors import ConfigError
from gpurun.launcher.fresh_interpreter import program_file
from gpurun.linux.files import write_atomically
from gpurun.linux.process import CLONE_NEWNS, CLONE_NEWUSER
from gpurun.linux.seccomp import SECCOMP_FILTER_FLAG_NEW_LISTENER
from gpurun.oci.reader import parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.exec import ExecOptions
    from gpurun.engine.plan.records import ExecPlan
    from gpurun.engine.state import State

#: The file's name in the state directory.
NAME = "exec-plan"
#: Its numbers.  *from_file*: the process is that of a file, *home*: which variable is HOME, to be looked up (NONE: none is).
NUMBERS = (
    "from_file", "namespaces", "uid", "gid", "umask", "bounding", "effective", "inheritable", "permitted", "ambient",
    "last_cap", "no_new_privileges", "home", "seccomp_flags",
)  # fmt: skip
#: Its texts.  *stamps*: :func:`stamps`; *before* and *behind*: what is around the array `args` in the process file; *groups*
#: are 32 bits each, *limits* (resource, soft, hard) 64 bits each; *apparmor* and *selinux* are what is written to the
#: files of the process; of *variables* each is ended by a zero byte.
TEXTS = (
    "stamps", "before", "behind", "variables", "cwd", "groups", "limits", "oom_score_adj", "keyring", "apparmor", "selinux",
    "seccomp",
)  # fmt: skip
#: What a plan depends on, besides the program itself, in the state directory.
FILES = ("state", "config.json", "edits", "seccomp")
NONE = (1 << 64) - 1
#: The largest plan, and the largest process file, that the front reads.
MAX_BYTES = 256 << 10


def stamps(root: str, container_id: str) -> bytes:
    """What tells the program and the :data:`FILES` from others of their names: inode, size, times of each; zero for a file
    that is not there.  To be asked before any of them is read."""
    called = sys._xoptions.get("gpurun-called")  # where the launcher's own file is one kept for another Python
    program = posix.stat(str(called)) if called else posix.fstat(program_file()[0])
    numbers = _stamp(program)
    for name in FILES:
        try:
            numbers += _stamp(posix.stat(f"{root}/{container_id}/{name}"))
        except OSError:
            numbers += [0, 0, 0, 0]
    return pack(f"={len(numbers)}Q", *numbers)


def _stamp(found: posix.stat_result) -> list[int]:
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def keep_plan(options: ExecOptions, state: State, plan: ExecPlan, made_from: bytes) -> None:
    """Keep *plan*, made without a warning of files with the stamps *made_from*, where it is one that the front can do.

    That it cannot be written is no error: the next exec is done here as well.
    """
    around = (b"", b"") if options.process is None else around_args(options.process_text)
    if around is None or not is_ordinary(options, state, plan):
        return
    try:
        data = encode(plan, options.process is not None, made_from, *around)
        if len(data) < MAX_BYTES:
            write_atomically(f"{options.root}/{options.id}/{NAME}", data, 0o600)
    except OSError:
        pass


def is_ordinary(options: ExecOptions, state: State, plan: ExecPlan) -> bool:
    """Whether the front can do an exec by the like of *plan*, made by *options* for the container *state*."""
    process = plan.process
    changed = options.process is None and any(
        (
            options.cwd,
            options.env,
            options.user,
            options.additional_gids,
            options.capabilities,
            options.apparmor_profile,
            options.selinux_label,
            options.no_new_privileges is not None,
        )
    )
    unusual = (
        changed,
        process.terminal,
        process.groups is None,
        process.capabilities is None,
        process.knobs is not None,
        process.seccomp is not None and process.seccomp[1] & SECCOMP_FILTER_FLAG_NEW_LISTENER,
        any(plan.affinity),
        plan.namespaces & (CLONE_NEWUSER | CLONE_NEWNS) != CLONE_NEWNS,
        state.manager,
        not state.cgroup,
    )
    return not any(unusual)


def around_args(text: bytes) -> tuple[bytes, bytes] | None:
    """(what stands before it, what stands behind it), of the array of the arguments in the *text* of a process, which has
    been read without an error; None where that is not known."""
    name = text.find(b'"args"')
    begin = text.find(b"[", name)
    if name < 0 or begin < 0 or text[name + 6 : begin].strip(b" \t\r\n") != b":" or text.count(b'"args"') > 1:
        return None
    end, quoted = begin, False
    while quoted or text[end : end + 1] != b"]":
        quoted ^= text[end : end + 1] == b'"'
        end += 2 if quoted and text[end : end + 1] == b"\\" else 1
        if end >= len(text):
            return None
    before, behind = text[:begin], text[end + 1 :]
    try:
        without, whole = parse_json(before + b"[]" + behind, ""), parse_json(text, "")
    except ConfigError:
        return None
    return (before, behind) if without == {**whole, "args": []} else None  # else it is the array of another object


def encode(plan: ExecPlan, from_file: bool, made_from: bytes, before: bytes, behind: bytes) -> bytes:
    """The file of *plan*, which is that of an ordinary process."""
    process, masks = plan.process, plan.process.capabilities
    assert masks is not None and process.groups is not None
    variables = dict(process.env)
    look_home_up = not variables.get("HOME")
    if look_home_up:
        variables["HOME"] = ""  # as environment() in engine/inside/enter_process.py has it: at its place, or as the last one
    program, flags = process.seccomp or (b"", 0)
    numbers = {
        "from_file": from_file,
        "namespaces": plan.namespaces,
        "uid": process.uid,
        "gid": process.gid,
        "umask": process.umask,
        **{name: getattr(masks, name) for name in type(masks)._fields},
        "last_cap": process.last_cap,
        "no_new_privileges": process.no_new_privileges,
        "home": [*variables].index("HOME") if look_home_up else NONE,
        "seccomp_flags": flags,
    }
    limits = [number for limit in process.rlimits for number in limit]
    texts: dict[str, str | bytes] = {
        "stamps": made_from,
        "before": before,
        "behind": behind,
        "variables": "".join([f"{name}={value}\0" for name, value in variables.items()]),
        "cwd": process.cwd,
        "groups": pack(f"={len(process.groups)}I", *process.groups),
        "limits": pack(f"={len(limits)}Q", *limits),
        "oom_score_adj": "" if process.oom_score_adj is None else str(process.oom_score_adj),
        "keyring": plan.session_keyring,
        "apparmor": f"exec {process.apparmor_profile}" if process.apparmor_profile else "",
        "selinux": process.selinux_label,
        "seccomp": program,
    }
    raw = [text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text for text in [texts[n] for n in TEXTS]]
    head = pack(f"={len(NUMBERS) + len(TEXTS)}Q", *[numbers[name] for name in NUMBERS], *map(len, raw))
    return head + b"".join([text + bytes(8 - len(text) % 8) for text in raw])
