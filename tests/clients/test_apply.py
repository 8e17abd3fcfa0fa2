"""Changes of clients' files under enemies: killed at each step, no space at each step, links, owners, another editor."""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.clients import files
from gpurun.clients.apply import apply_all
from gpurun.clients.files import KEPT, Change, read
from gpurun.clients.install import Setup, places, plan_install, plan_uninstall
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import ConfigError, GpurunError
from tests.clients.containerd_config import CONTAINERD

#: The calls that change the file system; each in turn is the one at which the enemy comes.
STEPS = ("open", "link", "rename", "unlink", "fsync", "fchmod", "fchown", "rmdir")
#: Those that take space.
TAKE_SPACE = ("open", "link", "fsync")
JSON = '{\n  "log-driver": "journald"\n}\n'
#: Name of the case → client, file, its text (None: there is none), whether it is a link, and a drop-in of our own.
CASES: dict[str, tuple[str, str, str | None, bool, str]] = {
    "docker, no file": ("docker", "daemon.json", None, False, ""),
    "docker, a file": ("docker", "daemon.json", JSON, False, ""),
    "docker, a link": ("docker", "daemon.json", JSON, True, ""),
    "containerd, two files": ("containerd", "config.toml", CONTAINERD, False, "conf.d/50-gpurun.toml"),
    "podman": ("podman", "containers.conf", None, False, ""),
}


@pytest.fixture(autouse=True)
def no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clients' own programs say is asked elsewhere."""
    monkeypatch.setenv("PATH", "/nowhere")


def prepared(case: str, directory: Path) -> Setup:
    client, name, text, linked, drop_in = CASES[case]
    (directory / "etc").mkdir(parents=True)
    file = directory / "etc" / name
    if linked:
        (directory / "elsewhere").mkdir()
        file.symlink_to("../elsewhere/the-file")
    if text is not None:
        file.write_text(text)
    own = str(directory / "etc" / drop_in) if drop_in else ""
    return Setup(client, RuntimeEntry("gpurun", "/opt/gpurun", True), str(file), own)


def install(setup: Setup) -> None:
    apply_all(setup, plan_install(setup))


def uninstall(setup: Setup) -> None:
    kept = places(setup)
    changes = plan_uninstall(setup)
    apply_all(setup, changes)
    for path in {*kept, *[change.path for change in changes]}:
        files.forget_kept(path)


def tree(directory: Path) -> dict[str, str]:
    """Every file below *directory*, links included, with the text that is read there."""
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.rglob("*")) if p.is_file()}


def at_step(step: int, act: Callable[[str], None], steps: tuple[str, ...] = STEPS) -> Callable[[], int]:
    """Call *act* before each of *steps* from the one numbered *step* on; returns what says how many there have been."""
    count = itertools.count()
    seen = [0]

    def enemy(name: str, call: Any) -> Any:
        def called(*words: Any, **more: Any) -> Any:
            writes = name != "open" or words[1] & os.O_CREAT
            if writes:
                seen[0] = next(count) + 1
                if seen[0] > step:
                    act(name)
            return call(*words, **more)

        return called

    for name in steps:
        setattr(os, name, enemy(name, getattr(os, name)))
    return lambda: seen[0]


def killed(step: int, work: Callable[[], None]) -> bool:
    """Do *work* in a child that kills itself before that step; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        try:
            at_step(step, lambda name: os.kill(os.getpid(), signal.SIGKILL))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("first", ["install", "uninstall"])
@pytest.mark.parametrize("case", CASES)
def test_killed_at_each_step(case: str, first: str, tmp_path: Path) -> None:
    """Each file is the old one or the new one; another install ends what was begun, an uninstall takes all of it back."""
    for step in itertools.count():
        directory = tmp_path / str(step)
        setup = prepared(case, directory)
        before = tree(directory)
        install(setup)
        after = tree(directory)
        if first == "install":
            uninstall(setup)
            assert tree(directory) == before
        more = killed(step, lambda: install(setup) if first == "install" else uninstall(setup))  # noqa: B023
        for name, text in tree(directory).items():
            assert Path(name).name.startswith(".") or text in (before.get(name), after.get(name))
        install(setup)
        assert tree(directory) == after, f"install, after a kill at step {step}"
        uninstall(setup)
        assert tree(directory) == before, f"uninstall, after a kill at step {step}"
        if not more:
            assert step > 2
            return


@pytest.mark.parametrize("first", ["install", "uninstall"])
@pytest.mark.parametrize("case", CASES)
def test_no_space_from_each_step_on(case: str, first: str, tmp_path: Path) -> None:
    """What cannot be written is said, and all is as it was: to put a file back takes no space."""
    for step in itertools.count():
        directory = tmp_path / str(step)
        setup = prepared(case, directory)
        if first == "uninstall":
            install(setup)
        before = tree(directory)
        work = install if first == "install" else uninstall
        reached = False
        with pytest.MonkeyPatch.context() as context:
            for name in STEPS:
                context.setattr(os, name, getattr(os, name))

            def full(name: str) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            count = at_step(step, full, TAKE_SPACE)
            try:
                work(setup)
            except GpurunError as e:
                assert "no space left on device" in str(e) and str(directory) in str(e)
                assert "could not be put back" not in str(e)
                reached = True
        if reached:
            assert tree(directory) == before, f"no space from step {step} on"
        elif count() <= step:
            return


def test_a_client_that_refuses_and_a_caller_that_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepared("containerd, two files", tmp_path)
    before = tree(tmp_path)

    def interrupted(command: tuple[str, ...]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpurun.clients.apply._check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install(setup)
    assert tree(tmp_path) == before


def test_the_file_stays_what_it_was_but_for_its_text(tmp_path: Path) -> None:
    """Owner, mode, attributes, and that it is a link."""
    if os.geteuid() != 0:
        pytest.skip("files of others are made by root")
    setup = prepared("docker, a link", tmp_path)
    file = tmp_path / "elsewhere/the-file"
    os.chown(file, 1234, 4321)
    file.chmod(0o640)
    os.setxattr(file, "user.note", b"mine")
    for work in (install, uninstall):
        work(setup)
        found = file.lstat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 4321, 0o640)
        assert os.getxattr(file, "user.note") == b"mine"
        assert os.readlink(setup.path) == "../elsewhere/the-file"
    install(setup)
    assert (os.stat(setup.path + KEPT).st_uid, Path(setup.path + KEPT).read_text()) == (1234, JSON)


def test_a_file_that_somebody_has_changed_meanwhile_is_left(tmp_path: Path) -> None:
    setup = prepared("docker, a file", tmp_path)
    changes = plan_install(setup)
    Path(setup.path).write_text('{"debug": true}')
    with pytest.raises(GpurunError, match="was changed by another program meanwhile"):
        apply_all(setup, changes)
    assert tree(tmp_path) == {"etc/daemon.json": '{"debug": true}'}


@pytest.mark.parametrize("what", ["a fifo", "a directory", "a device", "far too large"])
def test_what_is_no_configuration_file_is_refused(what: str, tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    if what == "a fifo":
        os.mkfifo(file)
    elif what == "a directory":
        file.mkdir()
    elif what == "a device":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(ConfigError, match="larger than" if what == "far too large" else "is not a regular file"):
        read(str(file))


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/proc/self/mem: cannot be read: input/output error$"):
        read("/proc/self/mem")


def test_strays_of_others_stay(tmp_path: Path) -> None:
    for name in (
        ".daemon.json.gpurun.1",
        ".daemon.json.gpurun.1.tmp",
        ".daemon.json.swp",
        ".daemon.json.1",
        "daemon.json.gpurun.1",
    ):
        (tmp_path / name).touch()
    files.remove_strays(str(tmp_path / "daemon.json"))
    assert sorted(os.listdir(tmp_path)) == [".daemon.json.1", ".daemon.json.swp", "daemon.json.gpurun.1"]


def test_a_change_is_undone_without_a_second_name(tmp_path: Path) -> None:
    """As an installer of nodes does later, when the engine does not come back."""
    file = tmp_path / "config.toml"
    file.write_text("old")
    change = Change(str(file), "new", "old")
    files.apply(change)
    assert file.read_text() == "new"
    files.take_back(change)
    assert file.read_text() == "old"
