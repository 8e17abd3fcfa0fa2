"""CVE-2019-5736: a container overwrites the program that the host runs for it.  gpurun's is an interpreter, its shared
library, the one-file launcher and the compiled front: each is a door, and each is tried in every way."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime
from tests.native.waiting import wait_until

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2019-5736", "the runtime's own program is overwritten or run by a container"),
]

MARK = "the interpreter ran"
CAPABILITIES = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN", "CAP_KILL", "CAP_FOWNER"]
FOREVER = "echo up; while :; do sleep 0.02; done"
#: Opens what every process runs that is no busybox, keeps it, and writes to it as soon as it runs no more: /tmp/tries times.
LIES_IN_WAIT = """
    echo up
    while :; do
        for d in /proc/[0-9]*; do
            [ "$d" = /proc/$$ ] && continue
            case "$(readlink $d/exe)" in
                */busybox|"") continue ;;
            esac
            (exec 9<$d/exe && echo seen >>/tmp/seen && tries=0 &&
                while [ $tries -lt $(cat /tmp/tries) ]; do
                    (echo OWNED >>/proc/self/fd/9) 2>/dev/null && echo written >>/tmp/written && break
                    tries=$((tries + 1))
                    sleep 0.02
                done) 2>/dev/null
        done
    done
"""


def programs(runtime: Runtime) -> list[Path]:
    """All that the host runs when it runs the runtime: the program, for gpurun the interpreter and both launchers too,
    and the libraries that these are linked with."""
    found = {Path(runtime.path).resolve()}
    if runtime.name.startswith("gpurun"):
        found |= {Path(os.path.realpath(sys.executable)), *(REPOSITORY / "build").glob("gpurun*")}
    for program in [path for path in found if path.is_file()]:
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        found |= {Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", told)}
    return sorted(path for path in found if path.is_file())


def digests(runtime: Runtime) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in programs(runtime)}


def in_wait(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> Container:
    leaks.allow_rootfs_changes()
    b = bundle().sh(LIES_IN_WAIT).capabilities(*CAPABILITIES)
    (b.rootfs / "tmp/tries").write_text("10")
    b.process["noNewPrivileges"] = False
    container = runtime.start(b)
    container.wait_for("up")
    return container


@pytest.mark.parametrize("command", ["/proc/self/exe", "/proc/1/exe", "/link", "#!"])
def test_the_runtime_itself_is_no_command(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    """/proc/self/exe is the host's program until execve: it must not be run in the container."""
    before = digests(runtime)
    container = runtime.create(commanded(bundle(), command), check=False)
    if container.result.rc == 0:
        container.start()
        container.wait()
    assert MARK not in container.out
    assert digests(runtime) == before


@pytest.mark.parametrize("command", ["/proc/self/exe", "/link", "#!"])
def test_nor_is_it_a_command_of_exec(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    before = digests(runtime)
    b = commanded(bundle(), command)
    args = b.process["args"]
    container = runtime.start(b.sh(FOREVER))
    container.wait_for("up")
    result = runtime("exec", container.id, *args)
    assert MARK not in result.out
    assert digests(runtime) == before


def commanded(b: Bundle, command: str) -> Bundle:
    """*b* runs the program that runs it, where it may."""
    (b.rootfs / "link").symlink_to("/proc/self/exe")
    (b.rootfs / "script").write_text("#!/proc/self/exe\n")
    (b.rootfs / "script").chmod(0o755)
    here = subprocess.run([sys.executable, "-c", f"print({MARK!r})"], capture_output=True, text=True, check=True)
    assert MARK in here.stdout, "an interpreter that runs says so"
    return b.args("/script" if command == "#!" else command, "-c", f"print({MARK!r})")


def test_a_container_that_lies_in_wait(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    before = digests(runtime)
    container = in_wait(runtime, bundle, leaks)
    rootfs = container.bundle.rootfs
    tries, seen, written = (rootfs / "tmp" / name for name in ("tries", "seen", "written"))
    # Programs of the host's that nobody has sealed, in the same pid namespace, are written to: the attack is one.  They run
    # until the attacker has opened one of them, and it has time to write.
    enter, victim = runtime.directory / "enter", runtime.directory / "victim"
    for copy, program in ((enter, "nsenter"), (victim, "cat")):
        shutil.copy(shutil.which(program) or f"/usr/bin/{program}", copy)
    sizes = enter.stat().st_size, victim.stat().st_size
    tries.write_text("10000")
    command, before_exec = runtime.bed.command([str(enter), f"--pid=/proc/{container.pid}/ns/pid", str(victim)])
    with subprocess.Popen(command, preexec_fn=before_exec, stdin=subprocess.PIPE) as process:
        wait_until(seen.exists)
        process.communicate()
    wait_until(written.exists)
    assert (enter.stat().st_size, victim.stat().st_size) != sizes
    tries.write_text("10")
    opened = "ls -l /proc/[0-9]*/fd 2>/dev/null || true"
    wait_until(lambda: not {str(enter), str(victim)} & set(runtime.bed.run("sh", "-c", opened).split()))
    written.unlink()
    for _ in range(15):
        runtime("exec", container.id, "true")
    assert digests(runtime) == before
    assert not written.exists()


def test_a_container_that_is_made_beside_it(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """The init of another container that joins the pid namespace of the attacker's, while it is made and while it waits."""
    before = digests(runtime)
    container = in_wait(runtime, bundle, leaks)
    for _ in range(5):
        second = runtime.create(bundle().namespace("pid", f"/proc/{container.pid}/ns/pid"), check=False)
        if second.result.rc == 0:
            second.delete("--force")
            second.wait()
    assert digests(runtime) == before
    assert not (container.bundle.rootfs / "tmp/written").exists()


def test_the_mapped_program_cannot_be_written_to(runtime: Runtime, bundle: MakeBundle) -> None:
    """/proc/PID/map_files (CAP_SYS_PTRACE with CAP_CHECKPOINT_RESTORE) opens what is mapped by the mount that it was mapped
    by: that of the program is read-only.  Libraries are the host's files, under every runtime (docs/security.md)."""
    container = runtime.create(bundle().sh(FOREVER))
    program = os.stat(os.path.realpath(sys.executable) if runtime.name.startswith("gpurun") else runtime.path)
    mapped = [entry.path for entry in os.scandir(container.proc("map_files")) if os.path.samestat(entry.stat(), program)]
    if not mapped:
        pytest.skip("the program that runs is a copy in memory")
    own = next(Path(entry.path) for entry in os.scandir("/proc/self/map_files") if os.path.exists(entry.path))
    os.close(os.open(own, os.O_RDONLY))  # root of the host may
    for path in mapped:
        with pytest.raises(OSError, match=r"Read-only file system|Text file busy"):
            os.close(os.open(path, os.O_RDWR))
