"""args[0]: found or refused at create, with the texts that Docker and Podman turn into exit codes 126 and 127."""

from __future__ import annotations

import os

import pytest

from tests.conftest import MakeBundle, runtime_version
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native


@pytest.fixture
def prepared(bundle: MakeBundle) -> Bundle:
    b = bundle()
    (b.rootfs / "usr/file").write_text("not executable\n")
    (b.rootfs / "usr/script").write_text("#!/bin/sh\necho script $0 $1\n")
    (b.rootfs / "usr/script").chmod(0o755)
    (b.rootfs / "usr/private").write_text("#!/bin/sh\n")
    (b.rootfs / "usr/private").chmod(0o700)
    (b.rootfs / "usr/nointerpreter").write_text("#!/nonexistent/sh\n")
    (b.rootfs / "usr/nointerpreter").chmod(0o755)
    (b.rootfs / "usr/dangling").symlink_to("/nonexistent/program")
    return b


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("nosuch", 'exec: "nosuch": executable file not found in $PATH'),
        ("/bin/nosuch", 'exec: "/bin/nosuch": stat /bin/nosuch: no such file or directory'),
        ("./nosuch", 'exec: "./nosuch": stat ./nosuch: no such file or directory'),
        ("/usr/dangling", 'exec: "/usr/dangling": stat /usr/dangling: no such file or directory'),
        ("/usr/file", 'exec: "/usr/file": permission denied'),
        ("/usr/file/x", "not a directory"),
        ("file", 'exec: "file": executable file not found in $PATH'),
        ("", "executable file not found in $PATH"),
    ],
)
def test_refused(runtime: Runtime, prepared: Bundle, command: str, says: str) -> None:
    prepared.process["env"] = ["PATH=/bin:/usr"]
    assert says in runtime.refused(prepared.args(command))


def test_directory(runtime: Runtime, prepared: Bundle) -> None:
    """Docker turns these words into exit code 126."""
    old = runtime_version().startswith("runc 1.1")
    assert f'exec: "/usr": {"permission denied" if old else "is a directory"}' in runtime.refused(prepared.args("/usr"))


def test_permissions_are_the_users(runtime: Runtime, prepared: Bundle) -> None:
    prepared.process["user"] = {"uid": 1000, "gid": 1000}
    text = runtime.refused(prepared.args("/usr/private"))
    assert "/usr/private" in text
    assert "permission denied" in text


@pytest.mark.parametrize(
    ("path", "command", "cwd", "output"),
    [
        ("/bin:/usr", "script", "/", "script /usr/script x\n"),
        ("/nonexistent:/usr", "script", "/", "script /usr/script x\n"),
        ("", "./script", "/usr", "script ./script x\n"),
        ("/bin", "/usr/script", "/", "script /usr/script x\n"),
    ],
)
def test_found(runtime: Runtime, prepared: Bundle, path: str, command: str, cwd: str, output: str) -> None:
    prepared.process["env"] = [f"PATH={path}"]
    prepared.process["cwd"] = cwd
    assert runtime.output(prepared.args(command, "x")) == output


def test_without_path_a_bare_name_is_not_found(runtime: Runtime, prepared: Bundle) -> None:
    prepared.process["env"] = ["A=b"]
    assert "executable file not found in $PATH" in runtime.refused(prepared.args("sh"))


def test_the_hosts_programs_are_not_found(runtime: Runtime, prepared: Bundle) -> None:
    assert "executable file not found in $PATH" in runtime.refused(prepared.args("mount.fuse"))


def test_script_without_interpreter_fails_after_start(runtime: Runtime, prepared: Bundle) -> None:
    """Only execve can know; start has returned by then."""
    container = runtime.create(prepared.args("/usr/nointerpreter"))
    assert container.start().rc == 0
    assert container.wait() != 0
    assert "/usr/nointerpreter: no such file or directory" in container.err


def test_file_of_no_known_format(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    (b.rootfs / "usr/data").write_bytes(b"\x01\x02\x03\x04")
    (b.rootfs / "usr/data").chmod(0o755)
    container = runtime.create(b.args("/usr/data"))
    container.start()
    assert container.wait() != 0
    assert "exec format error" in container.err


def test_no_arguments(runtime: Runtime, bundle: MakeBundle) -> None:
    assert "args must not be empty" in runtime.refused(bundle().args())


def test_a_waiting_container_gives_no_way_to_its_program(runtime: Runtime, bundle: MakeBundle) -> None:
    """Another container of the same pid namespace keeps /proc/<pid>/exe open, and writes to it when it no longer runs."""
    caps = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN"]
    attack = (
        "echo up; read -r pid; exec 9</proc/$pid/exe || { echo closed; exit; };"
        "echo open; read -r _;"
        "[ $(stat -Lc %i /proc/self/fd/9) = $1 ] && (: >>/proc/self/fd/9) 2>/dev/null && echo writable"
    )
    interpreter = str(os.stat("/usr/bin/python3").st_ino)
    b = bundle().capabilities(*caps).args("sh", "-c", attack, "sh", interpreter)
    read, write = os.pipe()
    first = runtime.start(b, stdin=read)
    first.wait_for("up")
    second = runtime.create(bundle().namespace("pid", f"/proc/{first.pid}/ns/pid"))
    inner = next(x for x in second.proc("status").read_text().splitlines() if x.startswith("NSpid")).split()[-1]
    os.write(write, f"{inner}\n".encode())
    wait_until(lambda: "open" in first.out or first.proc("stat").read_text().rpartition(") ")[2][0] == "Z")
    second.delete("--force")
    second.wait()
    os.write(write, b"go\n")
    os.close(read)
    os.close(write)
    first.wait()
    assert "writable" not in first.out
