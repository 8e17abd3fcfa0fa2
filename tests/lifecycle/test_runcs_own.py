"""What runc's own integration tests hold a runtime to, and its callers rely on, beside the suites by subject."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_mounts import mounted
from tests.native.bed import Bed
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.terminal import Listener, read_all

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 1; done"


def test_made_mount_points_inherit_the_group(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """mkdir(2) hands the bit for the group down; no mode is put over it afterwards."""
    leaks.allow_rootfs_changes()
    b = bundle().mount("/var/a/b", "tmpfs", kind="tmpfs")
    (b.rootfs / "var").chmod(0o2755)
    runtime.output(b)
    assert [oct((b.rootfs / name).stat().st_mode & 0o7777) for name in ("var/a", "var/a/b")] == ["0o2755"] * 2


@pytest.mark.parametrize(
    ("options", "all_of_it"), [(["rbind", "ro"], False), (["rbind", "rro"], True), (["rbind", "ro", "rro"], True)], ids=str
)
def test_read_only_is_recursive_when_it_says_so(
    runtime: Runtime, bundle: MakeBundle, options: list[str], all_of_it: bool
) -> None:
    found = mounted(runtime.output(bundle().args("cat", "/proc/mounts").mount("/tmp", "/dev", *options)))
    below = [words for path, (_, words) in found.items() if path.startswith("/tmp/")]
    assert "ro" in found["/tmp"][1] and below
    assert all("ro" in words for words in below) is all_of_it


@pytest.mark.not_on("runc 1.1", reason="makes one for each")
def test_masked_directories_share_a_file_system(runtime: Runtime, bundle: MakeBundle) -> None:
    """Kubernetes masks a directory for each CPU: one superblock serves them all, and one that is named twice is no error."""
    b = bundle().args("stat", "-c", "%d", "/etc/one", "/etc/two")
    for name in ("one", "two"):
        (b.rootfs / "etc" / name).mkdir()
    b.linux["maskedPaths"] += ["/etc/one", "/etc/two", "/etc/one"]
    one, two = runtime.output(b).split()
    assert one == two


def test_a_read_only_dev(runtime: Runtime, bundle: MakeBundle) -> None:
    """Its nodes are made before it becomes read-only."""
    b = bundle().sh("echo x >/dev/null && cat /proc/mounts; touch /dev/x")
    dev = next(mount for mount in b.config["mounts"] if mount["destination"] == "/dev")
    dev["options"].append("ro")
    result = runtime.run(b)
    assert "ro" in mounted(result.out)["/dev"][1] and "Read-only file system" in result.err


def test_devices_that_are_there_anyway(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("[ -c /dev/tty ] && readlink /dev/ptmx")
    b.linux["devices"] = [
        {"path": "/dev/tty", "type": "c", "major": 5, "minor": 0},
        {"path": "/dev/ptmx", "type": "c", "major": 5, "minor": 2},
    ]
    assert runtime.output(b) == "pts/ptmx\n"


def test_values_of_variables_may_have_newlines(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh('printf %s "$A"')
    b.process["env"].append("A=one\ntwo\n\nthree")
    assert runtime.output(b) == "one\ntwo\n\nthree"


@pytest.mark.not_on("runc 1.3", reason="a fault of that version: it has none")
def test_home_of_an_exec_without_variables(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    process = runtime.directory / "process.json"
    process.write_text(json.dumps({"cwd": "/", "args": ["/bin/env"], "user": {"uid": 1000, "gid": 1000}}))
    done = runtime("exec", "--process", str(process), container.id)
    assert "HOME=/home/alice" in done.out.splitlines(), done


def test_exec_runs_no_hooks(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    ran = runtime.directory / "ran"
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"echo x >>{ran}"], "env": [f"PATH={os.environ['PATH']}"]}
    b.config["hooks"] = {name: [hook] for name in ("createRuntime", "poststart")}
    container = runtime.start(b)
    before = ran.read_text()
    assert runtime("exec", container.id, "true") == (0, "", "")
    assert ran.read_text() == before


@pytest.mark.not_on("runc 1.1", reason="does not know the calls itself")
def test_a_profile_that_knows_no_new_calls(runtime: Runtime, bundle: MakeBundle) -> None:
    """The filter goes on so late that it can answer ENOSYS to every newer call that a runtime makes."""
    names = "close_range fsopen fsconfig fsmount fspick openat2 open_tree move_mount mount_setattr clone3 faccessat2".split()
    b = bundle().sh("echo up")
    b.process["noNewPrivileges"] = False
    rule = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
    b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
    assert runtime.output(b) == "up\n"


def test_whose_terminal(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    """It belongs to the user of the process and has a name in the container, for init and for exec; exec has its size."""
    script = "stat -Lc %u /proc/self/fd/0; readlink /proc/self/fd/0"
    b = bundle().sh(f"{script}; {FOREVER}")
    b.process["terminal"], b.process["user"] = True, {"uid": 1000, "gid": 1000}
    container = runtime.start(b, "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    assert read_all(master, "up").replace("\r", "").split("\n")[:2] == ["1000", "/dev/pts/0"]
    process = runtime.directory / "process.json"
    of_exec = {"terminal": True, "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 1000, "gid": 1000}}
    process.write_text(json.dumps({**of_exec, "args": ["sh", "-c", f"{script}; echo up"]}))
    exec_pid = runtime.directory / "exec.pid"
    done = runtime(
        *("exec", "--process", str(process), "--console-socket", str(listener.path), "--detach"),
        *("--pid-file", str(exec_pid), container.id),
    )
    assert done == (0, "", "")
    _, (second,) = listener.message()
    assert read_all(second, "up").replace("\r", "").split("\n")[:2] == ["1000", "/dev/pts/1"]
    os.waitpid(int(exec_pid.read_text()), 0)
    os.close(master)
    os.close(second)


def test_the_terminal_comes_before_the_pid_file(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    """conmon reads the pid file when it has the terminal: a create that fails at the pid file has sent it."""
    b = bundle().sh(FOREVER)
    b.process["terminal"] = True
    b.write()
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    options = ("--bundle", str(b.directory), "--console-socket", str(listener.path), "--pid-file", "/nonexistent/pid")
    done = runtime("create", *options, container_id)
    assert done.rc == 1 and "/nonexistent" in done.err
    _, (master,) = listener.message()
    os.close(master)
    assert runtime("state", container_id).rc == 1


def test_what_conmon_shows_of_a_failed_create(runtime: Runtime, bundle: MakeBundle) -> None:
    """It takes the first 8 KiB of stderr for the message: there is the error, and nothing before it."""
    b = bundle().args("nope")
    b.process["capabilities"]["bounding"].append("CAP_OF_THE_FUTURE")
    log = runtime.directory / "log.json"
    made = runtime.create(b, check=False, globals_=("--log", str(log), "--log-format", "json"))
    (line,) = made.err.splitlines()
    assert len(line) < 8192 and "executable file not found in $PATH" in line


def on_a_terminal(runtime: Runtime, *words: str) -> str:
    """What a command says whose stderr is a terminal."""
    master, peer = pty.openpty()
    try:
        process = subprocess.run(
            [*runtime.argv, *words], stdin=subprocess.DEVNULL, stderr=peer, preexec_fn=runtime.bed.enter(), timeout=60
        )
        assert process.returncode == 1
        os.close(peer)
        return read_all(master)
    finally:
        os.close(master)


def test_an_error_on_a_terminal(runtime: Runtime) -> None:
    """People get the short form of logrus, no record."""
    said = on_a_terminal(runtime, "state", "nowhere")
    assert "ERRO" in said and "[0000] container does not exist" in said and "time=" not in said


def test_json_is_indented(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle())
    state = runtime("state", container.id).out
    assert state.splitlines()[1].startswith('  "ociVersion"') and json.loads(state)["id"] == container.id
    assert runtime("features").out.splitlines()[1].startswith('    "')


def test_a_state_directory_without_a_state(runtime: Runtime, bundle: MakeBundle) -> None:
    """A create that was killed at once: delete says that there is no container, but with --force; both clean up."""
    container = runtime.create(bundle())
    container.delete("--force")
    assert oct(runtime.root.stat().st_mode & 0o777) == "0o700"
    for options, rc in (((), 1), (("--force",), 0)):
        (runtime.root / container.id).mkdir()
        done = runtime("delete", *options, container.id)
        assert done.rc == rc and ("does not exist" in done.err) is (rc == 1), done
        assert not (runtime.root / container.id).exists()


@pytest.mark.gpurun_only
def test_a_damaged_state_can_be_deleted(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """With runc nothing but rm helps."""
    container = runtime.start(bundle())
    container.wait()
    for damaged in (b"", b"no state\n", b"\0" * 100, b"id=x\n"):
        (runtime.root / container.id / "state").write_bytes(damaged)
        for command in ("state", "start", "delete"):
            done = runtime(command, container.id)
            assert done.rc == 1 and len(done.err.splitlines()) == 1 and "Traceback" not in done.err, (command, damaged)
    assert container.delete("--force").rc == 0
    assert not (runtime.root / container.id).exists()
    assert not bed.cgroup(f"{bed.subtree}/{container.id}").exists(), "its config.json names it"


def test_a_frozen_container_whose_init_was_killed(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """What cannot run is stopped, whatever its cgroup says: it can be deleted without --force."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    assert runtime("pause", container.id).rc == 0
    os.kill(container.pid, 9)
    container.wait()
    status = container.state()["status"]
    assert status == ("stopped" if runtime.name.startswith("gpurun") else status)
    assert container.delete("--force") == (0, "", "")


@pytest.mark.not_on("runc", reason="takes one of its own for it")
def test_descriptors_that_are_not_there(runtime: Runtime, bundle: MakeBundle) -> None:
    """They are skipped, as by crun: Podman counts to the last of those that it was told of."""
    b = bundle().sh("ls /proc/self/fd | wc -l")
    assert runtime.output(b, "--preserve-fds", "1000000000") == "4\n", "the streams, and what ls reads"


def test_a_wrapper_as_dockerd_makes_it(runtime: Runtime, bundle: MakeBundle) -> None:
    """``runtimeArgs`` of daemon.json become a shell script that hands its arguments on, unquoted."""
    wrapper = runtime.directory / "wrapper"
    wrapper.write_text(f"#!/bin/sh\n{runtime.path} --debug $@\n")
    wrapper.chmod(0o755)
    b = bundle().sh("exit 3")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    log = runtime.directory / "log"
    words = [str(wrapper), "--root", str(runtime.root), "--log", str(log), "run", "--bundle", str(b.directory), container_id]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, preexec_fn=runtime.bed.enter(), timeout=60, check=False)
    assert done.returncode == 3 and "level=debug" in log.read_text()


@pytest.mark.gpurun_only
def test_options_that_crun_has(runtime: Runtime, bundle: MakeBundle) -> None:
    """Another name for config.json, and many containers at once."""
    b = bundle().sh("sleep 1000")
    containers = []
    for _ in range(2):
        container_id = runtime.new_id()
        runtime.prepare(b, container_id)
        (b.directory / "config.json").rename(b.directory / "other.json")
        options = (
            "--bundle",
            str(b.directory),
            "--config",
            "other.json",
            "--pid-file",
            str(runtime.directory / container_id),
        )
        assert runtime("run", "--detach", *options, container_id) == (0, "", "")
        containers.append(container_id)
        b.linux.pop("cgroupsPath")
    everyone = f"^({'|'.join(containers)})$"
    assert runtime("kill", "--regex", everyone, "KILL") == (0, "", "")
    for container_id in containers:
        os.waitpid(int((runtime.directory / container_id).read_text()), 0)
    assert runtime("delete", "--regex", everyone) == (0, "", "")
    assert not json.loads(runtime("list", "--format", "json").out)


@pytest.mark.gpurun_only
def test_the_default_root_need_not_be_there(runtime: Runtime) -> None:
    """Who has never made a container has an empty list; a root that was asked for must be there."""
    for options, rc in (([], 0), (["--root", "/nonexistent/root"], 1)):
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run; exec "$0" "$@"', runtime.path, *options, "list", "-q"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            preexec_fn=runtime.bed.enter(),
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (rc, b""), done
