"""gpurun put on a node by a pod, and taken back: in a tree that is the node's root; upgraded, and what cannot be done."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.clients.toml_files import meaning
from gpurun.errors import GpurunError
from gpurun.kubernetes.install import steps
from gpurun.kubernetes.install.host import on_node
from gpurun.kubernetes.install.node_setup import RECORD, NodeSetup, with_defaults
from tests.clients.containerd_config import CONTAINERD, V2, V3
from tests.kubernetes.host_trees import PROGRAM, contents, listening, now, read_by_engine
from tests.kubernetes.node_install import (
    NODES,
    SETUP,
    install,
    needs_chroot,
    prepare,
    remove,
    runtimes,
)

pytestmark = needs_chroot


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
    if node == "somebody else's file":  # it reads the directory already, by its own words
        assert imports == ["conf.d/*.toml"]
    else:
        assert "/etc/containerd/conf.d/*.toml" in imports
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
    with listening(root, "run/crio/crio.sock"):
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
        with steps._install_lock():
            return steps.remove()

    with pytest.raises(GpurunError, match="another installer is running on this node"):
        on_node(str(root), twice)
