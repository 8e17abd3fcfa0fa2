"""The compiled front deletes plain containers as the launcher does, by force running ones; all others it leaves to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from gpurun.linux.procfs import oom_kills
from gpurun.ns.journal import ROOTFS, append
from tests.launcher.front import FALLS_BACK, Store, falls_back, run
from tests.native.bed import Bed, remove_cgroup
from tests.native.inject import Injection
from tests.native.waiting import wait_until

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")


@pytest.fixture
def stopped(store: Store) -> Store:
    os.kill(store.state.pid, signal.SIGKILL)
    wait_until(store.has_ended)
    for name in ("exec.fifo", "edits", "seccomp", "gpus"):
        (store.container / name).touch()
    return store


@pytest.mark.parametrize(
    ("hooks", "plain"),
    [("prestart", True), ("createRuntime", True), ("startContainer", True), ("poststop", False), ("post\\u0073top", False)],
)
def test_hooks_that_delete_has_to_run(places: Path, stopped: Store, hooks: str, plain: bool) -> None:
    """An engine's for the network, which it gives to every container, are none of them; a name may be written otherwise."""
    (stopped.container / "config.json").write_text(f'{{"hooks":{{"{hooks}":[{{"path":"/bin/false"}}]}}}}')
    if not plain:
        falls_back(places, stopped, "--root", stopped.root, "delete", "c")
        return
    assert run(places / "bare", "--root", stopped.root, "delete", "c").returncode == 0
    assert not stopped.container.exists()


@pytest.mark.parametrize("program", ["whole", "pure"])
def test_hooks_have_the_environment_of_the_caller(places: Path, stopped: Store, tmp_path: Path, program: str) -> None:
    """All of it, as with runc: a hook may be a program in Python, and its modules elsewhere."""
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"env >{tmp_path}/said"]}
    config = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": ["x"]}}
    (stopped.container / "config.json").write_text(json.dumps({**config, "hooks": {"poststop": [hook]}}))
    stopped.save(bundle=str(tmp_path))
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/here", "PYTHONHASHSEED": "7", "TOKEN": "x"}
    done = run(places / program, "--root", stopped.root, "delete", "c", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert {f"{name}={value}" for name, value in env.items()} <= set((tmp_path / "said").read_text().splitlines())


@pytest.mark.parametrize("options", [[], ["--force"], ["-f"]])
def test_delete(places: Path, stopped: Store, options: list[str]) -> None:
    log = stopped.root.parent / "log"
    done = run(places / "bare", "--root", stopped.root, "--log", log, "--log-format", "json", "delete", *options, "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not stopped.container.exists()
    assert not stopped.cgroup.exists()
    assert log.read_text() == ""
    assert log.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("program", ["bare", "pure"])
def test_delete_while_somebody_writes(places: Path, stopped: Store, tmp_path: Path, program: str) -> None:
    """A gpu attach that is at work makes files after delete has read what there is: nothing stays, and it is no error.

    The directory is said not to be empty the first time that it is to be removed, and delete is stopped there.
    """
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    directory, log = stopped.container, tmp_path / "log"
    log.touch()
    tracer = ["strace", "-D", "-qq", "-o", str(log), "-P", str(directory), "-e", "trace=rmdir"]
    tracer += ["-e", "inject=rmdir:error=ENOTEMPTY:signal=STOP:when=1"]
    command = [*tracer, str(places / program), "--root", str(stopped.root), "delete", "c"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]})
    wait_until(lambda: "stopped by SIGSTOP" in log.read_text())
    assert not os.listdir(directory)
    (directory / ".attached").touch()
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert not directory.exists()


@pytest.mark.parametrize(("error", "done"), [("ENOENT", True), ("ENOTEMPTY", False), ("EBUSY", False)])
def test_a_directory_that_does_not_go(places: Path, stopped: Store, tmp_path: Path, error: str, done: bool) -> None:
    """Another delete has removed it, or others make files in it all the time: that is for the launcher to say."""
    injection = Injection(tmp_path / "log", "rmdir", error, path=stopped.container)
    with injection as tracer:
        ended = run(places / "bare", "--root", stopped.root, "delete", "c", tracer=tracer)
    assert injection.injected and (ended.returncode == 0) is done, ended
    assert done or ended.stderr.startswith(FALLS_BACK)


IN_A_RUN_OF_ITS_OWN = 'mount -t tmpfs run /run && mkdir -p /run/systemd/transient && {}exec "$@"'


@pytest.mark.parametrize("left", ["", "touch /run/systemd/transient/x.scope && "])
def test_delete_of_a_scope(places: Path, stopped: Store, left: str) -> None:
    """It went with its last process, as scopes do; one that systemd still knows has failed, and systemd must be told."""
    if os.geteuid():
        pytest.skip("needs a /run of its own")
    stopped.cgroup.rmdir()
    stopped.save(unit="x.scope", oom_kills=oom_kills())
    own_run = ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_RUN_OF_ITS_OWN.format(left), "sh"]
    command = [*own_run, str(places / "bare"), "--root", str(stopped.root), "--systemd-cgroup", "delete", "--force", "c"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"]})
    assert (done.returncode == 0) is not bool(left), done
    assert stopped.container.exists() is bool(left)
    assert not left or done.stderr.startswith(FALLS_BACK)


@pytest.mark.parametrize("changes", [{"manager": "bus:/run/user/0/bus"}, {"oom_kills": -1}, {"oom_kills": 1 << 40}], ids=str)
def test_scopes_left_to_the_launcher(places: Path, stopped: Store, changes: dict[str, object]) -> None:
    """Of another manager than the system's, or of a host where processes were killed for want of memory since."""
    stopped.cgroup.rmdir()
    stopped.save(**{"unit": "gpurun-no-such.scope", "oom_kills": oom_kills(), **changes})
    falls_back(places, stopped, "--root", stopped.root, "delete", "c")
    if "manager" not in changes:
        falls_back(places, stopped, "--root", stopped.root, "state", "c")


@pytest.mark.parametrize(
    "special", ["notify", "resctrl", ".state", "created", "hooks", "unit", "keeper", "cgroup", "memory", "running"]
)
def test_deletes_with_more_to_undo(places: Path, store: Store, special: str) -> None:
    if special != "running":
        os.kill(store.state.pid, signal.SIGKILL)
        wait_until(store.has_ended)
    if special == "hooks":
        (store.container / "config.json").write_text('{"hooks":{"poststop":[]}}')
    elif special == "unit":
        store.save(unit="x.scope")
    elif special == "keeper":
        store.save(keeper=1)
    elif special == "cgroup":
        (store.cgroup / "child").mkdir()
    elif special == "memory":
        (store.cgroup / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")
    elif special == "created":
        fd = os.open(store.container / special, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        append(fd, ROOTFS, str(store.root.parent / "rootfs"))  # a whole journal: what it says is never the front's to undo
        os.close(fd)
    elif special != "running":
        (store.container / special).mkdir()
    falls_back(places, store, "--root", store.root, "delete", "c")


NO_SCOPE = "gpurun-no-such.scope"
STAT = "?stat,newfstatat"
#: What cannot be looked at: the system calls, their errno, and the path, below the directory of the store unless absolute.
UNSEEN = {
    "state directory that cannot be opened": ("openat", "EACCES", "root/c"),
    "state directory that cannot be read": ("getdents64", "EIO", "root/c"),
    "cgroup": (STAT, "EACCES", "cgroup"),
    "scope": (STAT, "EACCES", f"/run/systemd/transient/{NO_SCOPE}"),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_cannot_be_looked_at_is_not_taken_for_gone(places: Path, stopped: Store, tmp_path: Path, what: str) -> None:
    calls, error, path = UNSEEN[what]
    stopped.cgroup.rmdir()
    stopped.save(unit=NO_SCOPE, oom_kills=oom_kills())
    injection = Injection(tmp_path / "log", calls, error, path=tmp_path / path)
    with injection as tracer:
        falls_back(places, stopped, "--root", stopped.root, "delete", "c", tracer=tracer)
    assert injection.injected


@pytest.mark.parametrize("call", ["unlink", "rmdir"])
def test_what_cannot_be_removed_is_left_to_the_launcher(places: Path, stopped: Store, tmp_path: Path, call: str) -> None:
    """The state file as well, so that there is something to go on with."""
    path = stopped.container / "seccomp" if call == "unlink" else stopped.cgroup
    injection = Injection(tmp_path / "log", call, "EBUSY", path=path)
    with injection as tracer:
        done = run(places / "bare", "--root", stopped.root, "delete", "c", tracer=tracer)
    assert injection.injected and done.returncode == 1 and done.stderr.startswith(FALLS_BACK), done
    assert path.exists() and (stopped.container / "state").exists()


# ---- of one that has not ended


@pytest.mark.parametrize(
    ("options", "waits_for_start"), [(["--force"], False), (["-f"], False), ([], True), (["--force"], True)]
)
def test_delete_ends_it(places: Path, store: Store, options: list[str], waits_for_start: bool) -> None:
    if waits_for_start:
        os.mkfifo(store.container / "exec.fifo")
    done = run(places / "bare", "--root", store.root, "delete", *options, "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.waitpid(store.state.pid, 0)[1] == signal.SIGKILL
    assert not store.container.exists() and not store.cgroup.exists()


@pytest.mark.parametrize(
    "special", ["paused", "no pid namespace", "unit", "keeper", "hooks", "memory", "created", ".attached", "another process"]
)
def test_what_is_ended_by_the_launcher(places: Path, store: Store, special: str) -> None:
    """Nothing is killed before all is known to be plain."""
    if special == "paused":
        (store.cgroup / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    elif special == "no pid namespace":
        store.save(private_pid=False)
    elif special == "unit":
        store.save(unit="x.scope", oom_kills=oom_kills())
    elif special == "keeper":
        store.save(keeper=1)
    elif special == "hooks":
        (store.container / "config.json").write_text('{"hooks":{"poststop":[]}}')
    elif special == "memory":
        (store.cgroup / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")
    elif special == "another process":  # the pid was used again: a container that has stopped, in a cgroup that stays
        store.save(start_time=store.state.start_time + 1)
        (store.cgroup / "child").mkdir()
    else:
        (store.container / special).touch()
    falls_back(places, store, "--root", store.root, "delete", "--force", "c")
    assert not store.has_ended()


def test_a_pid_that_is_used_again_meanwhile(places: Path, store: Store, tmp_path: Path) -> None:
    """The first process ends, and another gets its pid, before there is a pidfd: the other is not killed."""
    stat = f"/proc/{store.state.pid}/stat"
    injection = Injection(tmp_path / "log", "openat", "ENOENT", "2", path=stat)  # the look after pidfd_open(2)
    with injection as tracer:
        falls_back(places, store, "--root", store.root, "delete", "--force", "c", tracer=tracer)
    assert injection.injected and not store.has_ended()


@pytest.mark.parametrize("what", ["created", "memory"])
def test_what_comes_while_it_ends(places: Path, store: Store, tmp_path: Path, what: str) -> None:
    """A GPU with its journal, or the kernel's word that memory ran out: the launcher undoes it, or says it."""
    log = tmp_path / "log"
    log.touch()
    tracer = ["strace", "-D", "-qq", "-o", str(log), "-e", "trace=pidfd_send_signal"]
    tracer += ["-e", "inject=pidfd_send_signal:signal=STOP"]
    command = [*tracer, str(places / "bare"), "--root", str(store.root), "delete", "--force", "c"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]})
    wait_until(lambda: "stopped by SIGSTOP" in log.read_text() and store.has_ended())
    if what == "created":
        (store.container / what).touch()
    else:
        (store.cgroup / "memory.events").write_text("low 0\noom_kill 1\n")
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said.startswith(FALLS_BACK), said
    assert (store.container / "state").exists() and store.cgroup.exists()


def test_one_that_does_not_end(places: Path, store: Store, tmp_path: Path) -> None:
    """In uninterruptible sleep, say: nothing is removed while it is there."""
    injection = Injection(tmp_path / "log", "pidfd_send_signal", "", done=True)
    with injection as tracer:
        falls_back(places, store, "--root", store.root, "delete", "--force", "c", tracer=tracer)
    assert injection.injected and not store.has_ended()


@pytest.mark.parametrize("program", ["bare", "checked"])
@pytest.mark.native
def test_delete_by_force_of_a_cgroup(places: Path, store: Store, bed: Bed, program: str) -> None:
    """The last process takes a moment to leave it."""
    if not (places / program).exists():
        pytest.skip("the compiler has no sanitizers")
    group = bed.cgroup(bed.subtree) / "front-force"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(store.state.pid))
        store.save(cgroup=str(group))
        done = run(places / program, "--root", store.root, "delete", "--force", "c")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert not group.exists() and not store.container.exists()
    finally:
        remove_cgroup(group)


@pytest.mark.parametrize("left", ["process", "cgroup"])
@pytest.mark.native
def test_the_launcher_goes_on_with_what_was_ended(places: Path, store: Store, bed: Bed, left: str) -> None:
    """A cgroup below it, or a process in it that the first one does not take with it: the state stays until all is gone."""
    group = bed.cgroup(bed.subtree) / "front-left"
    group.mkdir()
    try:
        with subprocess.Popen(["sleep", "1000"]) as other:
            (group / "cgroup.procs").write_text(str(store.state.pid))
            store.save(cgroup=str(group))
            if left == "process":
                (group / "cgroup.procs").write_text(str(other.pid))
            else:
                (group / "child").mkdir()
            done = run(places / "bare", "--root", store.root, "delete", "--force", "c")
            assert done.returncode == 1 and done.stderr.startswith(FALLS_BACK)
            assert store.has_ended() and (store.container / "state").exists() and group.exists()
            done = run(places / "whole", "--root", store.root, "delete", "--force", "c")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            assert not group.exists() and not store.container.exists()
            if left == "process":
                assert other.wait(60) == -signal.SIGKILL
            other.kill()
    finally:
        remove_cgroup(group)
