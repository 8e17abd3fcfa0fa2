"""What each process of gpurun has at each stage, seen from outside in a run: capabilities, open files, namespaces,
whether it may be looked into, its filter.  Writes docs/security.md.

    python -m tests.attacks.privileges [--into FILE]

strace(1) holds each process for a moment when it comes to certain system calls, and meanwhile /proc says what it has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.attacks import test_tree
from tests.conftest import REPOSITORY
from tests.native.bed import Bed
from tests.native.bundle import Bundle, base_config, make_rootfs
from tests.native.runtime import Container, Runtime
from tests.security.profile import engine_profile

DOCUMENT = REPOSITORY / "docs/security.md"
HELD_US = 400_000
#: Where a process is held, by the number of the call in /proc/PID/syscall (x86-64).
HELD = {435: "clone3", 112: "setsid", 155: "pivot_root", 170: "sethostname", 126: "capset", 59: "execve", 308: "setns"}
NAMES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
    net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
    sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
    mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore""".split()
#: What a descriptor leads to, by the end of its path.
ENDS = {
    "exec.fifo": "the FIFO of start",
    "/rootfs": "the rootfs",
    "/rootfs/proc": "its /proc",
    "/rootfs/sys": "its /sys",
    "created": "the journal",
}
#: The tables: the program in build/, and whether a starter makes its containers.
PROGRAMS = {
    "Behind the compiled front (gpurun-fast)": ("gpurun-fast", False),
    "The launcher alone, with a starter": ("gpurun", True),
}
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")

HEAD = """\
# Privileges of each process

This page is for security reviews. It shows what each process of gpurun could do if a container took control of it: its
capabilities, its namespaces and its open files, at each stage of create and exec.

`make security-table` writes this page. It stops each process of gpurun at a system call and reads its state from /proc.
The container is like one of Docker's: it has the capabilities AUDIT_WRITE, KILL and NET_BIND_SERVICE, a seccomp
profile, new namespaces of all kinds except user, and no terminal. The caller is root, with the capabilities that root
has on that machine.

- **capabilities**: the permitted set. *the caller's* means all that gpurun was called with.
- **namespaces**: those that differ from the caller's.
- **looked into**: whether processes of the same user may trace the process and open its files (PR_SET_DUMPABLE). Root
  of the host always may.
- **filter**: whether a seccomp filter is installed, and no_new_privs.
- **open files**: without the three standard streams, which are the container's.

"""

TAIL = """
## What the tables cannot show

- **A copy of the caller.** Without a starter, the init and exec's setter are copies of the caller. Until its first step
  such a copy has the caller's open files: the log, the launcher's file, the caller's own descriptors, and, if hooks on
  the host need the environment, the file that holds it. No process of the same user may look into it. Its memory is a
  copy of the caller's memory: config.json, what gpurun has read of the host (mounts, the driver's files), and the
  variables of the environment that gpurun reads. `tests/attacks/test_caller_secrets.py` looks for a token of the
  caller's environment there.
- **Hooks** of config.json run as the specification says: hooks of the runtime's side with the caller's privileges,
  hooks of the container's side with the init's. Whoever writes config.json chooses their programs.
- **NVML's helper** (`gpu/nvidia/host/nvml_process.py`) loads the driver's library, as root, on the host. It is a
  separate process, because a library that crashes or hangs must not stop gpurun. It learns nothing about the container,
  and it ends after its answer. Before it loads the library, it drops what it does not need
  (`gpu/nvidia/host/nvml_confined.py`): all capabilities except SYS_ADMIN, without which the driver does not list the
  processes of other users. Landlock forbids it to write anywhere but to NVIDIA's nodes, to run programs, to use TCP,
  and to send signals to other processes. A seccomp filter forbids mounts, namespaces, modules, tracing, changes of
  owners and modes, and sockets that are not local. The tests have a library that tries all of this
  (`tests/nvml/hostile.c`). On a kernel without Landlock, or a host without libseccomp, that part is missing.
- **CDI files** are read by gpurun itself, in Python: not by a separate process, and not by a library in C. Their owner
  must be trusted, and their size and depth are limited.
- **The placeholder** of a systemd scope sleeps with the caller's privileges until the init is in the scope. It reads
  nothing.
- **In a user namespace** the init has its capabilities only in that namespace. It has none of the host's.
- **The waiting init** has CAP_SYS_ADMIN only if the seccomp profile does not let it wait under the filter (`can_wait`
  in `security/seccomp.py`), or if there are startContainer hooks.
- **/proc/PID/map_files** of a waiting process can be opened with CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE together.
  The interpreter's file there is the sealed one, on a read-only mount: a test opens it for writing and is refused. The
  interpreter's libraries are the host's files, as under every runtime. To hide those, gpurun would have to give the
  interpreter another root or map the libraries again; it does neither.

## Under the security modules

These tests run in emulated guests with the kernel (6.12) and the policies of Debian 13. They compare gpurun with runc,
and for SELinux also with crun.

- **SELinux, enforcing** (`make test-selinux`, `test_selinux_enforcing.py`): create, start, exec, kill, state and
  delete, called by an administrator, and the program in container_t, do the same as under runc and crun. The kernel's
  log has no denial that it does not also have under those. A container with a simulated GPU can read its libraries, its
  loader's cache and its tree in /proc. The domain that the policy has for engines is not tested.
- **SELinux, labels** (`test_selinux.py`, `test_selinux_gpu.py`): the process, keys, mounts, /dev, exec and the terminal
  (with a console socket and in the foreground) get the same labels as under runc and crun. Files and mounts for GPUs
  get the context of `linux.mountLabel`, whether create, a hook under another runtime or `gpu attach` makes them, also
  in user namespaces. Nodes that are bound from the host there keep the host's label, as under runc. A criu without
  libselinux, such as Debian's, restores processes in its own context: such a restore fails, and the processes are ended
  at once.
- **AppArmor** (`make test-vm`): profiles of containers (`test_apparmor.py`) and of the caller
  (`test_apparmor_caller.py`). The caller's profiles are one without `userns`, one like Ubuntu's `unprivileged_userns`,
  and ones that deny CAP_SYS_ADMIN, mount or pivot_root. Each gives an error of one sentence and leaves nothing behind.
  With the package's profile on gpurun's path, a caller under the first two gets its container.
- **Yama** (`test_yama.py`): with kernel.yama.ptrace_scope = 3, create, exec, delete, and attach and detach of GPUs
  work. A seccomp agent (SCMP_ACT_NOTIFY) cannot get its listener then, and the error says so.
"""


OPENS = """
## Every open of a path of an image

A file of an image can be a FIFO or a device, so opening it can block gpurun or act on hardware. Modules that work in a
rootfs therefore open a path of it in one of three ways only: with flags that do not touch the file (O_PATH,
O_DIRECTORY), as a new file (O_EXCL), or by `open_file` in `ns/path.py`, which first checks with such a descriptor that
it is a regular file. All other modules open nothing of an image. `tests/attacks/test_tree.py` finds each call and fails
for any other way.

| module | function | how |
|---|---|---|
"""


def opens_of_images() -> str:
    found: dict[tuple[str, str], set[str]] = {}
    for file, function, _, flags in test_tree.opens():
        harmless = flags & test_tree.HARMLESS
        why = test_tree.OTHERS.get((file, function), "the flags of its callers")
        found.setdefault((file, function), set()).add(", ".join(sorted(harmless)) or why)
    for file in test_tree.IN_THE_IMAGE:
        for within, call in test_tree.functions(test_tree.TREE[file]):
            if test_tree.called(call) == "open_file":
                found.setdefault((file, getattr(within, "name", "")), set()).add("`open_file`: a regular file, to read")
    rows = [f"| `{file}` | `{function}` | {'; '.join(sorted(how))} |\n" for (file, function), how in sorted(found.items())]
    return OPENS + "".join(rows)


class Snapshot(NamedTuple):
    process: str
    stage: str
    capabilities: str
    namespaces: str
    looked_into: str
    confined: str
    files: str


def capabilities(mask: int, callers: int) -> str:
    if mask == callers:
        return "the caller's"
    names = [name.upper() for number, name in enumerate(NAMES) if mask >> number & 1]
    return ", ".join(names) or "none"


def words_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def files_of(pid: int) -> str:
    found = []
    for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        if int(name) < 3:
            continue
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        kind = re.sub(r":\[\d+\]$", "", target)
        for end, what in ENDS.items():
            kind = what if kind.endswith(end) else kind
        kind = "the cgroup" if "gpurun-privileges" in kind or "/sys/fs/cgroup" in kind else kind
        kind = "the program (sealed)" if "python" in kind or "gpurun" in kind else kind
        found.append({"/proc": "/proc", "/": "a root"}.get(kind, kind))
    return ", ".join(sorted(set(found))) or "none"


def snapshot(process: str, stage: str, pid: int, caller: dict[str, str], looked_into: str) -> Snapshot:
    """*caller*: what :func:`caller_of` has said of the process that was called."""
    words = words_of(pid)
    callers = int(caller["CapPrm"], 16)
    other = [n for n in NAMESPACES if os.readlink(f"/proc/{pid}/ns/{n}") != caller[n]]
    shown = "all six" if len(other) == len(NAMESPACES) else ", ".join(other) or "the caller's"
    filtered = "filter" if words["Seccomp"] == "2" else "none"
    confined = filtered + (", no_new_privs" if words["NoNewPrivs"] == "1" else "")
    return Snapshot(
        process, stage, capabilities(int(words["CapPrm"], 16), callers), shown, looked_into, confined, files_of(pid)
    )


def caller_of(pid: int) -> dict[str, str]:
    """The caller's capabilities and namespaces."""
    return {"CapPrm": words_of(pid)["CapPrm"], **{n: os.readlink(f"/proc/{pid}/ns/{n}") for n in NAMESPACES}}


def is_dumpable(log: str, pid: int) -> str:
    """By strace's log so far: what PR_SET_DUMPABLE was last, in *pid* or in who has cloned it."""
    value: dict[str, str] = {}
    for line in log.splitlines():
        who, _, call = line.partition(" ")
        call = call.strip().removesuffix(" (DELAYED)")
        if call.startswith("execve") and call.endswith("= 0"):
            value[who] = "yes"
        if found := re.search(r"prctl\(PR_SET_DUMPABLE, (\w+)", call):
            value[who] = "no" if found[1] in ("0", "SUID_DUMP_DISABLE") else "yes"
        if found := re.search(r"clone3?(?:\(| resumed>).*= (\d+)$", call):
            value.setdefault(found[1], value.get(who, "yes"))
    return value.get(str(pid), "yes")


@contextmanager
def runtime_and_bundle(program: Path) -> Iterator[tuple[Runtime, Callable[[], Bundle]]]:
    directory = Path(tempfile.mkdtemp(prefix="gpurun-test.", dir="/var/tmp"))
    directory.chmod(0o711)
    bed = Bed()
    runtime = Runtime(str(program), bed, directory)
    busybox = Path(shutil.copy(shutil.which("busybox") or "busybox", directory / "busybox"))

    def bundle() -> Bundle:
        b = Bundle(Path(tempfile.mkdtemp(prefix="bundle.", dir=directory)), base_config())
        make_rootfs(b.rootfs, busybox)
        b.linux["seccomp"] = engine_profile()
        b.process["noNewPrivileges"] = False
        return b.args("/bin/busybox", "sleep", "1000")

    try:
        yield runtime, bundle
    finally:
        runtime.cleanup()
        bed.close()
        shutil.rmtree(directory)


def watched(
    runtime: Runtime, log: Path, roles: dict[str, list[tuple[str, str]]], *args: str
) -> tuple[list[Snapshot], dict[str, str]]:
    """Runs a command under strace; what its processes had where *roles* says: {call: [(process, stage), ...]}, each the next
    time that a process comes there."""
    wanted = ",".join(sorted(roles))
    tracer = ["strace", "-D", "-I", "2", "-f", "-qq", "-o", str(log), "-e", f"trace={wanted},execve,clone,clone3,prctl"]
    tracer += ["-e", f"inject={wanted}:delay_enter={HELD_US}"]
    files = runtime.new_files()
    process = runtime.popen(*args, files=files, tracer=tracer)
    seen: set[tuple[int, str]] = set()
    found: list[Snapshot] = []
    waiting = {call: list(stages) for call, stages in roles.items()}
    caller: dict[str, str] = {}
    end = time.monotonic() + 60
    while (process.poll() is None or any(waiting.values())) and time.monotonic() < end:
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            try:
                status = words_of(pid)
                if not status["State"].startswith("t") or status["TracerPid"] == "0":
                    continue
                call = HELD.get(int(Path(f"/proc/{pid}/syscall").read_text().split()[0]), "")
            except (OSError, ValueError, KeyError):
                continue
            if runtime.bed.subtree not in Path(f"/proc/{pid}/cgroup").read_text():
                continue
            if not caller:
                caller = caller_of(process.pid)
                found.append(snapshot("caller", "while it waits for the others", process.pid, caller, "yes"))
            if not waiting.get(call) or (pid, call) in seen or pid == process.pid:
                continue
            seen.add((pid, call))
            name, stage = waiting[call].pop(0)
            found.append(snapshot(name, stage, pid, caller, is_dumpable(log.read_text(), pid)))
        if process.poll() is not None and "start" not in args:
            break
        time.sleep(0.01)
    process.wait(60)
    assert process.returncode == 0, (files / "err").read_text()
    return found, caller


def table(program: Path, starter: bool) -> list[Snapshot]:
    """What the processes of *program* have, which uses a *starter* or none."""
    with runtime_and_bundle(program) as (runtime, bundle):
        log = runtime.directory / "log"
        b = bundle()
        container_id = runtime.new_id()
        runtime.prepare(b, container_id)
        stages = {
            "clone3": [("starter", "before it clones the init")] if starter else [],
            "setsid": [("init", "its first step; the host's tree is its root")],
            "pivot_root": [("init", "the rootfs is built")],
            "sethostname": [("init", "in the rootfs")],
            "capset": [("init", "before it drops its capabilities")],
        }
        pid_file = runtime.directory / "pid"
        found, caller = watched(
            runtime, log, stages, "create", "--bundle", str(b.directory), "--pid-file", str(pid_file), container_id
        )
        pid = int(pid_file.read_text())
        _untrace()
        found.append(snapshot("init", "created: it waits for start", pid, caller, is_dumpable(log.read_text(), pid)))
        container = Container(runtime, container_id, b, None, runtime.directory)  # type: ignore[arg-type]
        assert container.start().rc == 0
        log.unlink()
        stages = {
            "setns": [("starter of exec" if starter else "setter", "before it enters a namespace")],
            "capset": [("setter", "before it drops its capabilities")],
            "setsid": [("exec process", "its first step: seen by the container")],
        }
        found += watched(runtime, log, stages, "exec", container_id, "true")[0][1:]
        _untrace()
        if not starter:  # it has left a plan, by which the front does the next one itself
            log.unlink()
            stages = {
                "setns": [("setter of the front's own exec", "before it enters a namespace")],
                "capset": [("setter of the front's own exec", "before it drops its capabilities")],
                "setsid": [("exec process of the front", "its first step: seen by the container")],
            }
            found += watched(runtime, log, stages, "exec", container_id, "true")[0][1:]
            _untrace()
        runtime("kill", container_id, "KILL")
        os.waitpid(pid, 0)
        return found


def _untrace() -> None:
    """Ends the tracer, which stays as long as a process of the container's does."""
    for pid in Path("/proc/thread-self/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text() == "strace\n":
            os.kill(int(pid), 15)
            os.waitpid(int(pid), 0)


def document(tables: dict[str, list[Snapshot]]) -> str:
    text = HEAD
    for title, rows in tables.items():
        text += f"## {title}\n\n" + "\n".join(_lines(rows)) + "\n\n"
    return text + TAIL.lstrip() + opens_of_images()


def _lines(rows: list[Snapshot]) -> list[str]:
    lines = [
        "| process | stage | capabilities | namespaces | looked into | filter | open files |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*lines, *["| " + " | ".join(row) + " |" for row in rows]]


def main(arguments: list[str]) -> int:
    if shutil.which("strace") is None:
        print("strace is not installed", file=sys.stderr)
        return 1
    into = Path(arguments[1]) if arguments[:1] == ["--into"] else DOCUMENT
    tables = {}
    for title, (name, starter) in PROGRAMS.items():
        if (REPOSITORY / "build" / name).exists():
            tables[title] = table(REPOSITORY / "build" / name, starter)
    into.write_text(document(tables))
    subprocess.run(["cat", into], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
