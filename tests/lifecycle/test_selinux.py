"""A container and its SELinux labels, beside runc and crun: of its processes, keys, mounts and files, and what is refused.

Debian's policy, permissive: what it would refuse is logged by the kernel and done all the same.  `make test-selinux` runs
this in a guest with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from errno import ENOSYS
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.execs import process_file
from tests.native.kernel_log import kernel_log, mark_kernel_log
from tests.native.refusing import refuse
from tests.native.runtime import Container, Runtime
from tests.native.selinux import FILES, OTHER, PROCESS, flush_decisions, label, labelled, needs_selinux, refusals
from tests.native.terminal import Listener, read_all

pytestmark = needs_selinux

#: Joins the session keyring of that name, and says its label (keyctl(2) on x86_64).
OWN_LABEL = """
import ctypes, sys
libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(4096)
assert libc.syscall(250, 1, sys.argv[1].encode()) > 0
assert libc.syscall(250, 17, -3, text, len(text)) > 0
print(text.value.decode())
"""

#: What a container has of its own: each with the label of its file system, of the policy, or of its mount.
PLACES = (
    *("dev", "dev/null", "dev/zero", "dev/console", "dev/pts", "dev/pts/0", "dev/ptmx", "dev/shm", "dev/mqueue", "dev/fd"),
    *(
        "proc",
        "proc/kcore",
        "proc/sys",
        "proc/timer_list",
        "sys",
        "sys/fs/cgroup",
        "sys/firmware",
        "tmp",
        "tmp/file",
        "data",
    ),
)
#: Those that gpurun itself makes, by the context of config.json's mountLabel.
OWN = ("dev", "dev/null", "dev/shm", "dev/mqueue", "tmp", "tmp/file", "sys/firmware")


def places(container: Container) -> dict[str, str]:
    root = container.proc("root")
    return {name: label(root / name) for name in PLACES}


def attributes(pid: int) -> dict[str, str]:
    return {
        name: Path(f"/proc/{pid}/attr/{name}").read_bytes().decode().rstrip("\0\n")
        for name in ("current", "exec", "fscreate", "keycreate", "sockcreate")
    }


def keyring_label(container: Container) -> str:
    """Of the session keyring, which runc calls ``_ses.ID``; gpurun's is seen by who joins it, and its state has the name."""
    state = container.runtime.root / container.id / "state"
    if state.is_file():
        name = next(line for line in state.read_text().splitlines() if line.startswith("session_keyring=")).partition("=")[2]
    else:
        name = f"_ses.{container.id}"
        if f"{name}:" not in Path("/proc/keys").read_text():
            return "none"
    done = subprocess.run([sys.executable, "-c", OWN_LABEL, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def context_options(container: Container) -> dict[str, str]:
    """The contexts in the options of the container's mounts."""
    found = {}
    for line in container.proc("mounts").read_text().splitlines():
        _, place, _, options, *_ = line.split(" ")
        if match := re.search(r'\b(\w*context)="?([^", ]*(?:,c\d+)?)"?', options):
            found[place] = match[0].replace('"', "")
    return found


@pytest.mark.short
def test_labels_of_the_process_its_keys_mounts_and_files(runtime: Runtime, peer: Runtime, bundle: MakeBundle) -> None:
    seen: list[dict[str, Any]] = []
    for each in (runtime, peer):
        container = each.create(labelled(bundle()))
        if each is runtime:  # runc and crun leave the label of new keys until the program is executed
            waiting = attributes(container.pid)
            assert (waiting["fscreate"], waiting["keycreate"], waiting["sockcreate"]) == ("", "", "")
        assert container.start().rc == 0
        container.wait_for("up")
        assert container.out.splitlines()[0].rstrip("\0") == PROCESS
        running = attributes(container.pid)
        assert running == dict.fromkeys(running, "") | {"current": PROCESS}
        seen.append(
            {
                "of the keyring": keyring_label(container),
                "of files": places(container),
                "of mounts": context_options(container),
            }
        )
        assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0
    ours, its = seen
    assert ours["of the keyring"] == PROCESS
    for name in OWN:
        assert ours["of files"][name] == FILES, name
    if peer.name.startswith("crun"):  # which covers masked files with its own mounts, and does not label its keyring
        assert all(its["of files"][name] == FILES for name in OWN if name != "sys/firmware")
    else:
        assert differences(ours, its) == {}


@pytest.mark.short
@pytest.mark.gpurun_only
def test_labels_where_a_filter_refuses_the_newer_mount_calls(runtime: Runtime, bundle: MakeBundle) -> None:
    """mount(2) takes all options as one text, in which the label's commas must not end the option."""
    assert "," in FILES
    refused = refuse(("fsopen", "fsconfig", "fsmount"), ENOSYS)
    container = runtime.create(labelled(bundle()), preexec=refused)
    assert container.start().rc == 0
    container.wait_for("up")
    labels = places(container)
    assert {name: labels[name] for name in OWN} == dict.fromkeys(OWN, FILES)


def differences(ours: dict[str, Any], its: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Where the two are not alike: our label and the other runtime's."""
    found: dict[str, Any] = {}
    for what in ours:
        one, other = (each[what] if isinstance(each[what], dict) else {what: each[what]} for each in (ours, its))
        found |= {key: (one.get(key), other.get(key)) for key in {*one, *other} if one.get(key) != other.get(key)}
    return found


@pytest.mark.short
@pytest.mark.parametrize("how", ["console socket", "foreground"])
def test_terminal(runtime: Runtime, peer: Runtime, bundle: MakeBundle, how: str) -> None:
    """The terminal by its names in /dev, and the streams, before and after the program is executed."""
    ours, its = [_terminal(each, labelled(bundle()).sh("echo up; exec sleep 1000"), how) for each in (runtime, peer)]
    assert ours["running"]["/dev/pts"] == ours["running"]["/dev/shm"] == FILES, ours
    assert ours == its


def _terminal(runtime: Runtime, b: Bundle, how: str) -> dict[str, dict[str, str]]:
    b.process["terminal"] = True
    found = {}
    if how == "console socket":
        listener = Listener(runtime.directory / "console.sock")
        container = runtime.create(b, "--console-socket", str(listener.path))
        _, (master,) = listener.message()
        listener.socket.close()
        listener.path.unlink()
        found["created"] = _of_the_terminal(container.pid)
        assert container.start().rc == 0
        read_all(master, "up", timeout=60)
        found["running"] = _of_the_terminal(container.pid)
        assert container.kill("KILL").rc == 0 and container.wait() == 137
    else:
        container_id, files = runtime.new_id(), runtime.new_files()
        runtime.prepare(b, container_id)
        master, slave = os.openpty()
        command = ("run", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), container_id)
        process = runtime.popen(*command, files=files, preexec=lambda: _take(slave))
        os.close(slave)
        read_all(master, "up", timeout=60)
        found["running"] = _of_the_terminal(int((files / "pid").read_text()))
        assert runtime("kill", container_id, "KILL").rc == 0 and process.wait(60) == 137
    os.close(master)
    return found


def _take(slave: int) -> None:
    for fd in (0, 1, 2):
        os.dup2(slave, fd)


def _of_the_terminal(pid: int) -> dict[str, str]:
    """The contexts of its names, and what the streams of the process *pid* are there."""
    names = ("/dev/pts", "/dev/pts/0", "/dev/console", "/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/shm")
    found = {name: label(f"/proc/{pid}/root{name}") for name in names}
    streams = [f"/proc/{pid}/fd/{number}" for number in (0, 1, 2)]
    found["streams"] = " ".join({f"{os.readlink(fd)} {os.getxattr(fd, 'security.selinux').decode()}" for fd in streams})
    return found


@pytest.mark.short
def test_exec(runtime: Runtime, peer: Runtime, bundle: MakeBundle) -> None:
    """The container's label, the one that is asked for, and that of a process.json."""
    seen = []
    for each in (runtime, peer):
        container = each.start(labelled(bundle()))
        container.wait_for("up")
        say = ("cat", "/proc/self/attr/current")
        answers = [each("exec", container.id, *say)]
        answers.append(each("exec", "--process-label", OTHER, container.id, *say))
        answers.append(each("exec", *process_file(container, args=list(say), selinuxLabel=OTHER), container.id))
        seen.append([answer.out.strip("\0\n") for answer in answers])
        assert container.kill("KILL").rc == 0
    assert seen[0] == seen[1] == [PROCESS, OTHER, OTHER]


@pytest.mark.parametrize("field", ["selinuxLabel", "mountLabel"])
def test_a_label_that_the_policy_does_not_know(runtime: Runtime, bundle: MakeBundle, field: str) -> None:
    b = labelled(bundle())
    (b.process if field == "selinuxLabel" else b.linux)[field] = "system_u:system_r:no_such_type_t:s0"
    assert "no_such_type_t" in runtime.refused(b)


def lived(runtime: Runtime, bundle: Bundle) -> set[tuple[str, str, str, str]]:
    """What the policy would have refused in the life of a container."""
    flush_decisions()
    since = mark_kernel_log()
    container = runtime.start(bundle)
    container.wait_for("up")
    assert runtime("exec", container.id, "sh", "-c", "echo x >/tmp/other; cat /proc/self/status >/dev/null").rc == 0
    assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0
    return refusals(kernel_log(since))


@pytest.mark.short
@pytest.mark.usefixtures("all_logged")
def test_what_the_policy_would_refuse(runtime: Runtime, peer: Runtime, bundle: MakeBundle) -> None:
    """Of the container's processes no more than under the other runtime, and of the runtime itself."""
    ours, its = lived(runtime, labelled(bundle())), lived(peer, labelled(bundle()))
    assert its, "the kernel logs nothing: there is nothing to compare"
    assert sorted(ours - its) == []
