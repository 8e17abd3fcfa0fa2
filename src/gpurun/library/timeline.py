"""The launch of a container as a timeline: from the system calls of gpurun's processes to the steps that they belong to.

Pure.  A step begins with a call that is made for nothing else (pivot_root(2), say), and lasts until the next one
begins in the same process.  What the container's own program does is not of the launch.
"""

from __future__ import annotations

from collections import Counter

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpurun.formats.strace import Call

    Matches = Callable[[Call], bool]


class Step(Record):
    """What one process did for a while: *start* and *length* in milliseconds from the first call of all."""

    process: str
    name: str
    start: float
    length: float
    calls: int
    most: tuple[tuple[str, int], ...]  # the system calls that were made most often


def _call(*names: str) -> Matches:
    return lambda call: call.name in names


def _with(name: str, *words: str) -> Matches:
    return lambda call: call.name == name and any(word in call.arguments for word in words)


#: (what the call is like, the step that begins with it), for the caller, in the order in which they are asked.
_CALLER: tuple[tuple[Matches, str], ...] = (
    (_with("openat", 'config.json"'), "read config.json, plan"),
    (_call("mkfifo", "mknod", "mknodat"), "make the FIFO that start opens"),
    (_with("mkdir", "/sys/fs/cgroup"), "make the cgroup"),
    (_with("mkdir", ""), "make the state directory"),
    (_with("bpf", "BPF_PROG_LOAD"), "load the device program"),
    (_with("openat", "cgroup.procs", ".max", ".weight"), "set the limits of the cgroup"),
    (_with("sendmsg", "SCM_RIGHTS"), "send the plan with its open files"),
    (_with("openat", "exec.fifo"), "start: release the init"),
    (_call("waitid", "wait4", "epoll_wait", "poll"), "wait for the container"),
    (_with("unlink", "/state"), "delete: take away what is left"),
    (_with("rmdir", "/sys/fs/cgroup"), "delete: remove the cgroup"),
)
_INSIDE: tuple[tuple[Matches, str], ...] = (
    (_call("recvmsg"), "wait for the plan"),
    (_with("clone3", "CLONE_NEW"), "clone the init into its namespaces and its cgroup"),
    (_call("setsid"), "begin a session"),
    (_with("mount", "MS_SLAVE", "MS_PRIVATE"), "cut the mounts off the host's"),
    (_with("open_tree", "OPEN_TREE_CLONE"), "bind directories and files"),
    (_call("fsopen"), "mount file systems"),
    (_call("mknodat", "mknod"), "make device nodes"),
    (_call("symlinkat"), "make links"),
    (_call("pivot_root"), "pivot_root: leave the host's tree"),
    (_call("sethostname"), "set the host name"),
    (_with("mount_setattr", "MOUNT_ATTR_RDONLY"), "make paths read-only, mask others"),
    (_call("capset"), "give up capabilities"),
    (_call("setresuid", "setresgid", "setgroups"), "become the user"),
    (_with("openat", "exec.fifo"), "wait for start"),
    (_call("seccomp"), "install the seccomp filter"),
)
_EXECVE: tuple[tuple[Matches, str], ...] = ((_call("execve"), "execve the program"),)
_FIRST = {"caller": "start the interpreter, import modules", "starter": "start the interpreter, import modules"}


def timeline(calls: Iterable[Call]) -> list[Step]:
    """The steps of all processes, by when they began.

    The first process is the caller; the others are named by how they came to be and what they did.
    """
    by_process: dict[int, list[Call]] = {}
    for call in calls:
        by_process.setdefault(call.pid, []).append(call)
    if not by_process:
        return []
    begin = min(call.at for own in by_process.values() for call in own)
    names = _name_processes(by_process)
    found: list[Step] = []
    for pid, own in by_process.items():
        found += _steps(names[pid], _launch(names[pid], own), begin)
    return sorted(found, key=lambda step: step.start)


def _name_processes(by_process: dict[int, list[Call]]) -> dict[int, str]:
    caller = next(iter(by_process))
    names, hooks = {caller: "caller"}, 0
    for pid, own in by_process.items():
        made = {call.name for call in own}
        if pid == caller:
            continue
        if "pivot_root" in made or ("setsid" in made and "capset" in made):
            names[pid] = "init"
        elif any(call.name == "clone3" and "CLONE_PARENT" in call.arguments for call in own):
            names[pid] = "starter"
        else:
            hooks += 1
            names[pid] = f"process {hooks}"
    return names


def _launch(name: str, own: list[Call]) -> list[Call]:
    """What is gpurun's of the calls of one process: of the init, all up to the last execve before the program is there."""
    if name != "init":
        return own if name in _FIRST else own[:1]
    ends = [i for i, call in enumerate(own) if call.name == "execve" and call.result == "0"]
    return own[: ends[0] + 1] if ends else own


def _steps(process: str, own: list[Call], begin: float) -> list[Step]:
    rules = _CALLER if process == "caller" else _INSIDE + _EXECVE if process == "init" else _INSIDE
    name = _FIRST.get(process, "begin in the new namespaces" if process == "init" else "run")
    found: list[Step] = []
    part: list[Call] = []
    seen: set[str] = set()
    for call in own:
        rest = next((step for matches, step in rules if matches(call)), name)
        if rest != name and (rest not in seen or rest.startswith("wait")):
            if part:
                found.append(_step(process, name, part, call.at, begin))
            seen.add(rest)
            name, part = rest, []
        part.append(call)
    last = own[-1]
    return [*found, _step(process, name, part, last.at + last.seconds, begin)]


def _step(process: str, name: str, part: list[Call], end: float, begin: float) -> Step:
    most = tuple(Counter(call.name for call in part).most_common(3))
    start = part[0].at
    return Step(process, name, (start - begin) * 1000, max(end - start, 0.0) * 1000, len(part), most)


def as_text(steps: list[Step]) -> str:
    """A table: when, how long, which process, how many system calls, which step."""
    lines = ["    at ms      ms  process   calls  step"]
    for step in steps:
        most = ", ".join([f"{name} {count}" for name, count in step.most])
        lines.append(f"{step.start:9.2f} {step.length:7.2f}  {step.process:9} {step.calls:5}  {step.name}   ({most})")
    total = sum(step.calls for step in steps)
    lines.append(f"{total} system calls; under strace all takes longer than without: the order and the shares count")
    return "\n".join(lines) + "\n"
