"""gpurun put on a node by a pod, and taken back: in a tree that is the node's root, killed at every step, and upgraded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.clients.toml_files import meaning
from gpurun.errors import GpurunError
from gpurun.kubernetes.install import program, restart, steps
from gpurun.kubernetes.install.host import on_node
from gpurun.kubernetes.install.node_setup import RECORD, NodeSetup, with_defaults
from tests.clients.containerd_config import CONTAINERD, V2, V3
from tests.forms import stride
from tests.kubernetes import killed
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.host_trees import PROGRAM, busybox, contents, listening, make_tree, now, read_by_engine

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or busybox() is None, reason="chroot needs root, the tree busybox")

BUILT = Path(__file__).resolve().parents[2] / "build/gpurun"
#: What nodes have before: the main file and those beside it.
NODES: dict[str, dict[str, str]] = {
    "no file": {},
    "version 2": {"config.toml": CONTAINERD},
    "version 3": {"config.toml": CONTAINERD.replace(V2, V3).replace("version = 2", "version = 3")},
    "a directory that is imported": {"config.toml": 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'},
    "somebody else's file": {
        "config.toml": 'version = 2\nimports = ["conf.d/*.toml"]\n', "conf.d/99-nvidia.toml": CONTAINERD,
    },
}  # fmt: skip
SETUP = with_defaults(NodeSetup("containerd", restart="systemd"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_tree(tmp_path)
    listening(made)
    return made


def source(root: Path, text: str = PROGRAM) -> int:
    file = root.parent / "program"
    file.write_text(text)
    return os.open(file, os.O_RDONLY)


def install(root: Path, setup: NodeSetup = SETUP, text: str = PROGRAM) -> str:
    fd = source(root, text)
    try:
        return on_node(str(root), lambda: steps.install(setup, fd))
    finally:
        os.close(fd)


def remove(root: Path) -> str:
    return on_node(str(root), steps.remove)


def prepare(root: Path, files: dict[str, str], directory: str = "etc/containerd") -> dict[str, str]:
    for name, text in files.items():
        path = root / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return contents(root)


def runtimes(root: Path, name: str) -> Any:
    document = tomllib.loads((root / name).read_text())
    return next(document["plugins"][kind] for kind in (V3, V2) if kind in document.get("plugins", {}))["containerd"][
        "runtimes"
    ]


@pytest.mark.parametrize("node", NODES)
def test_there_and_back(root: Path, node: str) -> None:
    start = prepare(root, NODES[node])
    said = install(root)
    assert "/opt/gpurun/bin/gpurun is new" in said and "containerd knows gpurun" in said
    made = contents(root)
    assert made["opt/gpurun/bin/gpurun"] == PROGRAM and (root / "opt/gpurun/bin/gpurun").stat().st_mode & 0o777 == 0o755
    table = tomllib.loads(made["etc/containerd/conf.d/gpurun.toml"])
    cri = table["plugins"][V3 if table["version"] == 3 else V2]
    assert cri["enable_cdi"] is True
    assert cri["containerd"]["runtimes"]["gpurun"]["options"]["BinaryName"] == "/opt/gpurun/bin/gpurun"
    if CONTAINERD in NODES[node].values():  # containerd before 2.1 takes this table whole from the last file that has it
        assert cri["sandbox_image"] == "registry/pause:3.9" and "runc" in cri["containerd"]["runtimes"]
        assert cri["containerd"]["runtimes"]["gpurun"]["options"]["SystemdCgroup"] is True
    imports = tomllib.loads(made["etc/containerd/config.toml"])["imports"]
    theirs = ["conf.d/*.toml"] if node == "somebody else's file" else []  # it reads the directory already, by its own words
    assert imports == theirs or (not theirs and "/etc/containerd/conf.d/*.toml" in imports), imports
    assert read_by_engine(root) == now(root) and not json.loads(made[RECORD[1:]])["restart"]
    assert install(root) == "containerd knows gpurun already", "the second time there is nothing to do"
    assert (root / "var/log/systemctl").read_text() == "restart containerd\n"
    remove(root)
    assert contents(root) == start and read_by_engine(root) == now(root)
    assert not (root / "opt/gpurun").exists()
    assert remove(root) == "nothing of gpurun is installed on this node"


def test_a_file_of_version_1_has_it_itself(root: Path) -> None:
    """Such a file imports nothing."""
    start = prepare(root, {"config.toml": '[plugins.cri.containerd]\n  snapshotter = "overlayfs"\n'})
    install(root)
    document = tomllib.loads((root / "etc/containerd/config.toml").read_text())
    assert document["plugins"]["cri"]["containerd"]["runtimes"]["gpurun"]["options"]["BinaryName"] == SETUP.program
    remove(root)
    assert contents(root) == start


def test_crio(root: Path) -> None:
    start = prepare(root, {"crio.conf": "[crio.runtime]\ndefault_runtime = 'crun'\n"}, "etc/crio")
    listening(root, "run/crio/crio.sock")
    install(root, with_defaults(NodeSetup("crio", default=True)))
    runtime = tomllib.loads((root / "etc/crio/crio.conf.d/gpurun.conf").read_text())["crio"]["runtime"]
    assert runtime["default_runtime"] == "gpurun"
    assert runtime["runtimes"]["gpurun"] == {"runtime_path": "/opt/gpurun/bin/gpurun", "runtime_type": "oci"}
    assert (root / "var/log/systemctl").read_text() == "restart crio\n"
    remove(root)
    assert contents(root) == start


def test_the_program_alone(root: Path) -> None:
    """For who writes the engine's configuration himself."""
    start = prepare(root, NODES["version 2"])
    install(root, with_defaults(NodeSetup("none")))
    made = contents(root)
    assert set(made) - set(start) == {"opt/gpurun/bin/gpurun", RECORD[1:]}
    assert install(root, with_defaults(NodeSetup("none"))) == "it is there"
    remove(root)
    assert contents(root) == start and not (root / "var/log/systemctl").exists()


def test_what_the_administrator_has_changed_meanwhile_stays(root: Path) -> None:
    prepare(root, NODES["version 2"])
    install(root)
    file = root / "etc/containerd/config.toml"
    file.write_text(file.read_text().replace("pause:3.9", "pause:3.10"))
    remove(root)
    assert tomllib.loads(file.read_text()) == tomllib.loads(CONTAINERD.replace("pause:3.9", "pause:3.10"))


def test_another_wish_takes_the_old_one_back(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    install(root)
    install(root, with_defaults(NodeSetup("containerd", directory="/usr/local/gpurun", name="gpu", restart="systemd")))
    assert set(runtimes(root, "etc/containerd/conf.d/gpurun.toml")) == {"runc", "gpu"}
    assert not (root / "opt/gpurun").exists() and (root / "usr/local/gpurun/bin/gpurun").exists()
    remove(root)
    (root / "usr/local").rmdir()
    assert contents(root) == start


@pytest.mark.parametrize("node", NODES)
def test_a_version_that_writes_otherwise_restarts_nobody(root: Path, node: str) -> None:
    """Another version of gpurun, or of its TOML library: headers of tables without keys, blank lines, other quotes."""
    start = prepare(root, NODES[node])
    install(root)
    for name in ("conf.d/gpurun.toml", "config.toml"):
        file = root / "etc/containerd" / name
        text = file.read_text().replace("\n\n", "\n")
        for kind in (V2, V3):
            text = text.replace(f'"{kind}"', f"'{kind}'")
        file.write_text(f"{text}\n[table.without.keys]\n")
    written = contents(root)
    assert install(root, text=PROGRAM + "# new\n") == "/opt/gpurun/bin/gpurun is new"
    assert {name for name, text in contents(root).items() if text != written.get(name)} == {"opt/gpurun/bin/gpurun"}
    assert (root / "var/log/systemctl").read_text() == "restart containerd\n"
    remove(root)
    main, left = "etc/containerd/config.toml", contents(root)
    assert set(left) | {main} == set(start) | {main}, "nothing else is left, and no file that was kept"
    assert meaning(left.get(main, ""), main) in (meaning(start.get(main, ""), main), {"version": 2})


def test_an_upgrade_beside_containers(root: Path) -> None:
    """The program is exchanged in one step, the engine is left alone; who runs the old one keeps it."""
    install(root)
    old = os.open(root / "opt/gpurun/bin/gpurun", os.O_RDONLY)
    assert install(root, text=PROGRAM.replace("1", "2")) == "/opt/gpurun/bin/gpurun is new"
    assert os.read(old, 1000).decode() == PROGRAM
    os.close(old)
    assert "version 2" in (root / "opt/gpurun/bin/gpurun").read_text()
    assert (root / "var/log/systemctl").read_text() == "restart containerd\n"


def test_the_program_stays_while_containers_need_it(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    install(root)
    note = root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/runtime"
    note.parent.mkdir(parents=True)
    note.write_text("/opt/gpurun/bin/gpurun")
    assert "stays for 1 containers" in remove(root)
    assert (root / "opt/gpurun/bin/gpurun").exists() and (root / "etc/containerd/config.toml").read_text() == CONTAINERD
    note.write_text("/usr/bin/runc")
    assert remove(root) == "/opt/gpurun/bin/gpurun is gone"
    note.unlink()
    assert contents(root) == start


def test_a_runtime_of_that_name_which_the_node_had_stays(root: Path) -> None:
    """A removal that has to come again, for a container's sake, does not take what the first has given back."""
    table = "plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes"
    own = CONTAINERD + f'\n[{table}.gpurun]\nruntime_type = "io.containerd.runc.v2"\n'
    own += f"[{table}.gpurun.options]\nBinaryName = '/usr/local/bin/gpurun'\n"
    start = prepare(root, {"config.toml": own})
    install(root)
    note = root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/runtime"
    note.parent.mkdir(parents=True)
    note.write_text("/opt/gpurun/bin/gpurun")
    for _ in range(2):
        assert "stays for 1 containers" in remove(root)
        assert (root / "etc/containerd/config.toml").read_text() == own
    note.unlink()
    assert remove(root) == "/opt/gpurun/bin/gpurun is gone"
    assert contents(root) == start


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "etc/containerd/config.toml").write_text("a = ["), "config.toml: is not TOML"),
        (
            lambda root: (root / "etc/containerd/config.toml").write_text("version = 2\n# broken\n"),
            "rejects the new configuration, and nothing is changed: containerd: broken",
        ),
        (lambda root: (root / "refuse").touch(), "Job failed; its configuration is as it was before"),
        (lambda root: (root / "opt").rmdir() or (root / "opt").touch(), "/opt/gpurun/bin/gpurun: not a directory"),
        (
            lambda root: (root / "bin/sh").unlink(),
            "this node cannot run gpurun (no such file or directory): it needs Python",
        ),
    ],
)
def test_what_cannot_be_done_leaves_the_engine_as_it_was(root: Path, change: Callable[[Path], object], said: str) -> None:
    prepare(root, NODES["version 2"])
    change(root)
    before = now(root)
    with pytest.raises(GpurunError) as error:
        install(root)
    assert said in str(error.value)
    assert now(root) == before
    (root / "refuse").unlink(missing_ok=True)
    if "a = [" in str(before):
        return  # to be put right first
    if (root / "opt").is_dir() and (root / "bin/sh").exists():
        remove(root)
        assert now(root) == before and not (root / RECORD[1:]).exists()


def test_only_one_at_a_time(root: Path) -> None:
    def twice() -> str:
        with steps._alone():
            return steps.remove()

    with pytest.raises(GpurunError, match="another installer is running on this node"):
        on_node(str(root), twice)


def killed_at(step: int, root: Path, work: Callable[[], str]) -> bool:
    """Do *work* on the node in a child that ends before or after its n-th change of a file; whether it got so far."""

    def dying() -> str:
        counted = killed.ends_at(step)
        for name in ("open", "rename", "fsync", "unlink", "mkdir", "rmdir", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        for module in (program, restart):
            module.subprocess.run = counted(subprocess.run)  # type: ignore[attr-defined]
        return work()

    try:
        on_node(str(root), dying)
    except GpurunError as e:
        assert str(e) == "the child that works on the node ended with 9"
        return True
    return False


def clear(root: Path, start: dict[str, str]) -> None:
    remove(root)
    assert contents(root) == start
    (root / "var/log/systemctl").unlink(missing_ok=True)


def test_what_a_killed_installer_left_goes_and_the_files_of_others_stay(root: Path) -> None:
    prepare(root, NODES["version 2"])
    programs = root / SETUP.program.lstrip("/")
    record, config = root / "var/lib/gpurun/node-install.json", root / "etc/containerd/config.toml"
    for file in (programs, record, config):
        file.parent.mkdir(parents=True, exist_ok=True)
    strays = [file.parent / f".{file.name}.gpurun.4711" for file in (programs, record, config)]
    others = [
        file.parent / f".{file.name}.{end}" for file in (programs, record, config) for end in ("1", "20261123", "1.tmp")
    ]
    for file in (*strays, *others):
        file.write_text("")
    install(root)
    assert [file for file in strays if file.exists()] == []
    assert [file for file in others if not file.exists()] == []


@pytest.mark.parametrize("after", ["install", "remove"])
def test_killed_at_any_step_of_installing(root: Path, after: str) -> None:
    """Whoever comes next goes on, or takes it all back; and the engine has read what is there."""
    start = prepare(root, NODES["version 2"])
    install(root)
    wanted = contents(root)
    clear(root, start)
    step = 0
    while True:
        step += stride()
        fd = source(root)
        was_killed = killed_at(step, root, lambda fd=fd: steps.install(SETUP, fd))  # type: ignore[misc]
        os.close(fd)
        if after == "install":
            install(root)
            assert contents(root) == wanted, step
            assert read_by_engine(root) == now(root), step
        remove(root)
        assert contents(root) == start, step
        assert read_by_engine(root) in ({}, now(root)), step
        if not was_killed:
            break
    assert step > 30


def test_killed_at_any_step_of_removing(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    step = 0
    while True:
        step += stride()
        install(root)
        was_killed = killed_at(step, root, steps.remove)
        remove(root)
        assert contents(root) == start, step
        assert read_by_engine(root) == now(root), step
        if not was_killed:
            break
    assert step > 20


ENGINE = r"""
import ctypes, os, signal, socket, sys
ctypes.CDLL(None).prctl(15, b"containerd")  # PR_SET_NAME
path = sys.argv[1]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
signal.signal(signal.SIGHUP, signal.SIG_DFL if sys.argv[2] == "ends" else signal.SIG_IGN)
while True:
    listener.accept()[0].close()
"""


@pytest.mark.parametrize("how", ["ends", "goes on", "is another program"])
def test_a_signal(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "_WAIT_S", 30.0 if how == "ends" else 1.0)
    path = f"/tmp/engine-{os.getpid()}.sock"
    script = ENGINE if how != "is another program" else ENGINE.replace('b"containerd"', 'b"dockerd"')
    loop = 'trap "kill \\$pid; exit" TERM; while :; do "$@" & pid=$!; wait $pid; sleep .2; done'
    supervisor = subprocess.Popen(["bash", "-c", loop, "sh", sys.executable, "-c", script, path, how])
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                first = restart.listener(path)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        if how == "ends":
            restart.restart("containerd", "signal", path)
            assert restart.listener(path) != first
        else:
            said = "goes on after SIGHUP" if how == "goes on" else "is dockerd: no signal is sent to it"
            with pytest.raises(GpurunError, match=said):
                restart.restart("containerd", "signal", path)
            assert restart.listener(path) == first
    finally:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(30)
        os.unlink(path)


def command(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gpurun", "kubernetes", *words, "--host-root", str(root)]


ENV = os.environ | {"PYTHONPATH": "src"}


def test_the_command_until_a_signal(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    os.close(source(root))
    ready = root.parent / "ready"
    words = ("--program", str(root.parent / "program"), "--restart-mode", "systemd", "--ready-file", str(ready))
    process = subprocess.Popen(command(root, "install-node", *words), env=ENV, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    assert "gpurun" in runtimes(root, "etc/containerd/conf.d/gpurun.toml")
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and not ready.exists() and contents(root) == start, said
    once = subprocess.run(command(root, "install-node", *words, "--oneshot"), env=ENV, capture_output=True, text=True)
    assert once.returncode == 0 and (root / "opt/gpurun/bin/gpurun").exists(), once.stderr
    back = subprocess.run(command(root, "uninstall-node"), env=ENV, capture_output=True, text=True)
    assert back.returncode == 0 and contents(root) == start, back.stderr


@pytest.mark.sweep(1)
@pytest.mark.parametrize("over", [True, False])
def test_the_built_program_asks_whether_its_daemonset_goes_on(root: Path, over: bool) -> None:
    """As in a pod: without site-packages, until the client of the API server is needed."""
    start = prepare(root, NODES["version 2"])
    os.close(source(root))
    environment = root.parent / "environment"
    (environment / "bin").mkdir(parents=True)
    shutil.copy(BUILT, environment / "bin/gpurun")
    (environment / "pyvenv.cfg").touch()
    library = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    library.mkdir(parents=True)
    (library / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    server = ApiServer()
    if not over:
        server.put("daemonsets", {
            "metadata": {"name": "install", "namespace": "ns"}, "spec": {"template": {"spec": {}}},
        })  # fmt: skip
    ready = root.parent / "ready"
    words = ["--restart-mode", "systemd", "--ready-file", str(ready), "--daemonset", "ns/install", "--node-name", "node-1"]
    words += ["--program", str(root.parent / "program"), "--kubeconfig", str(server.kubeconfig(root.parent / "kubeconfig"))]
    program = [str(environment / "bin/gpurun"), *command(root, "install-node", *words)[3:]]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    server.stop()
    assert process.returncode == 0 and (contents(root) == start) is over, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "docker"), '--engine: \\"docker\\" is not one of containerd, crio, none'),
        (("--restart-mode", "reboot"), '--restart-mode: \\"reboot\\" is not one of signal, systemd, none'),
        (("--install-dir", "opt"), '--install-dir: \\"opt\\" is not an absolute path on the node'),
        (("--on-exit", "ask"), "--on-exit ask needs --daemonset NAMESPACE/NAME"),
        (("--on-exit", "never"), '--on-exit: \\"never\\" is not one of ask, remove, keep'),
        ((), "--program build/gpurun"),
    ],
)
def test_a_bad_option_is_one_sentence(root: Path, words: tuple[str, ...], said: str) -> None:
    start = contents(root)
    done = subprocess.run(command(root, "install-node", *words), env=ENV, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert contents(root) == start
