"""Command lines that the compiled front takes itself, where it finds the state root, and the file that it is in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.builder.front import STATIC, compile_front, compiler, join
from tests.launcher.front import FALLS_BACK, Store, falls_back, run

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["--debug", "state", "c"],
        ["--cgroup-manager", "systemd", "state", "c"],
        ["--log-format", "xml", "state", "c"],
        ["state"],
        ["state", "c", "d"],
        ["state", "--help"],
        ["state", "../c"],
        ["state", ".c"],
        ["state", ""],
        ["state", "c/"],
        ["state", "c" * 300],
        ["state", "missing"],
        ["list"],
        ["delete", "--regex", "c"],
        ["--root"],
        ["--log"],
        ["--root=relative", "state", "c"],
        ["--root=/", "state", "c"],
        ["--log=/nowhere/at/all", "state", "c"],
        ["--log=journald:x", "state", "c"],
        ["--log=syslog:", "kill", "c", "0"],
        ["--", "state", "c"],
    ],
)
def test_other_command_lines_are_the_launchers(places: Path, store: Store, words: list[str]) -> None:
    given = words if any(w.startswith("--root") for w in words) else ["--root", str(store.root), *words]
    falls_back(places, store, *given)
    whole, pure = [run(places / name, *given) for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout) == (pure.returncode, pure.stdout)


@pytest.mark.parametrize("form", ["{}/", "{}/../root", "{}/.", "/{}", "{}//x"])
def test_roots_with_something_to_resolve(places: Path, store: Store, form: str) -> None:
    falls_back(places, store, "--root", form.format(store.root), "state", "c")


MOUNTED = 'mount -t tmpfs none /run && mkdir /run/gpurun && mount --bind "$1" /run/gpurun && shift && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of its own needs root")
@pytest.mark.parametrize(
    ("namespaces", "env", "where"),
    [
        ("-m", {}, "/run"),
        ("-m", {"XDG_RUNTIME_DIR": "{}"}, "/run"),
        ("-m", {"XDG_RUNTIME_DIR": "{}", "USER": "root"}, "/run"),
        ("-Umr", {}, "/run"),
        ("-Umr", {"XDG_RUNTIME_DIR": "{}"}, "{}"),
        ("-Umr", {"XDG_RUNTIME_DIR": "{}", "USER": "me"}, "{}"),
        ("-Umr", {"XDG_RUNTIME_DIR": "{}", "USER": "root"}, "/run"),
    ],
)
def test_the_default_root(
    places: Path, store: Store, tmp_path: Path, namespaces: str, env: dict[str, str], where: str
) -> None:
    """Podman calls kill, delete, pause and resume without a root, and with XDG_RUNTIME_DIR, root's too."""
    runtime_dir = tmp_path / "runtime"
    runtime_dir.mkdir()
    shown = store.root
    if where == "{}":
        (runtime_dir / "gpurun").symlink_to(store.root)
        shown = runtime_dir
    variables = [f"{name}={value.format(runtime_dir)}" for name, value in env.items()]
    said = []
    for name in ("bare", "pure"):
        command = [
            "unshare",
            namespaces,
            "sh",
            "-ec",
            MOUNTED,
            "sh",
            str(shown),
            "env",
            "-i",
            *variables,
            str(places / name),
        ]
        done = subprocess.run([*command, "state", "c"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        said.append(done.stdout)
    assert said[0] == said[1] and '"status": "running"' in said[0]


#: A user's view: $1 the programs, $2 the state root, which goes to $3 and is the user's $4; then a command as user 4242.
AS_A_USER = """
mount -t tmpfs none /run
mkdir -p /run/cgroup /run/user/4242 /run/elsewhere
cp -r "$1" /run/programs
chmod 755 /run/programs
cp -r "$2" "$3"
chown -R "$4:$4" "$3"
[ "$3" != /run/elsewhere/gpurun ] || ln -s /run/elsewhere/gpurun /run/user/4242/gpurun
cd /
shift 4
exec setpriv --reuid 4242 --regid 4242 --clear-groups env -i "$@"
"""
UNSET, LOGINDS = {"USER": "root"}, "/run/user/4242"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(
    ("env", "where", "owner", "by_front"),
    [
        (UNSET, f"{LOGINDS}/gpurun", 4242, True),  # after su(1), in a cron job
        ({"XDG_RUNTIME_DIR": ""}, f"{LOGINDS}/gpurun", 4242, True),
        ({"XDG_RUNTIME_DIR": LOGINDS}, f"{LOGINDS}/gpurun", 4242, True),
        ({"XDG_RUNTIME_DIR": "/run/elsewhere"}, "/run/elsewhere/gpurun", 4242, True),
        ({"XDG_RUNTIME_DIR": "/run/elsewhere", "USER": "root"}, "/run/elsewhere/gpurun", 4242, True),
        ({"XDG_RUNTIME_DIR": LOGINDS}, "/run/elsewhere/gpurun", 4242, True),  # by a link of the user's own
        ({"XDG_RUNTIME_DIR": "/run/elsewhere/"}, "/run/elsewhere/gpurun", 4242, False),  # something to resolve
        ({"XDG_RUNTIME_DIR": "/run/user/../elsewhere"}, "/run/elsewhere/gpurun", 4242, False),
        ({"XDG_RUNTIME_DIR": "/run/elsewhere"}, "/run/elsewhere/gpurun", 0, False),
        ({"XDG_RUNTIME_DIR": "/run/elsewhere"}, "/run/elsewhere/gpurun", 4343, False),
        (UNSET, f"{LOGINDS}/gpurun", 4343, False),
    ],
)
def test_the_default_root_of_a_user(
    places: Path, store: Store, env: dict[str, str], where: str, owner: int, by_front: bool
) -> None:
    """$XDG_RUNTIME_DIR, or where logind makes it; what $USER says is for root alone.  The launcher refuses state that is
    another user's, or root's."""
    store.save(cgroup="/run/cgroup")
    variables = [f"{name}={value}" for name, value in env.items()]
    said = {}
    for name in ("bare", "whole", "pure"):
        words = [str(places), str(store.root), where, str(owner), *variables, f"/run/programs/{name}", "state", "c"]
        command = ["unshare", "-m", "sh", "-ec", AS_A_USER, "sh", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said[name] = (done.returncode, done.stdout, re.sub(r'time="[^"]*"', "", done.stderr))
    assert said["whole"] == said["pure"], said
    assert ('"status": "running"' in said["pure"][1]) is (owner == 4242), said
    assert owner == 4242 or "another user" in said["pure"][2], said
    assert (said["bare"] == said["pure"]) is by_front and (FALLS_BACK in said["bare"][2]) is not by_front, said


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_closed_descriptor(places: Path, store: Store, fd: int) -> None:
    command = [str(places / "bare"), "--root", str(store.root), "kill", "c", "TERM"]
    done = subprocess.run(command, preexec_fn=lambda: os.close(fd), env={}, timeout=60)
    assert done.returncode == 1
    os.kill(store.state.pid, 0)


def test_the_hooks_name_and_completion(places: Path, store: Store, tmp_path: Path) -> None:
    link = tmp_path / "nvidia-container-runtime-hook"
    link.symlink_to(places / "whole")
    assert run(link, "-version").stdout.startswith("NVIDIA Container Runtime Hook")
    amds = tmp_path / "amd-ctk"
    amds.symlink_to(places / "whole")
    assert run(amds, "version").stdout.startswith("Version: 1.3.")
    words = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": "gpurun del", "COMP_CWORD": "1"}
    assert "delete" in run(places / "whole", env=words).stdout
    falls_back(places, store, "--root", store.root, "state", "c", env=words)


def test_a_copy_and_a_link_find_the_launcher(places: Path, tmp_path: Path) -> None:
    shutil.copy(places / "whole", tmp_path / "copy")
    (tmp_path / "link").symlink_to("copy")
    for program in (tmp_path / "copy", tmp_path / "link"):
        done = run(program, "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("gpurun version ")
    done = subprocess.run(["./copy", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env={})
    assert done.stdout.startswith("gpurun version ")


def test_it_fits_before_the_launcher_where_pages_have_64_kib() -> None:
    """As on aarch64, whose kernels may: the linker gives each segment of the program pages of its own."""
    program = compile_front(compiler(), ("-Wl,-z,max-page-size=65536",), STATIC)
    assert len(program) > 512 << 10
    assert join(program, b"launcher").endswith(b"launcher")
