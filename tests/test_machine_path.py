"""What a shim calls imports only gpurun and what is built in or C: asked of the source, and of running processes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.builder import machine_path
from gpurun.cli.table import COMMANDS
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime
from tests.source_tree import FILES, PACKAGE, parsed

SOURCE = PACKAGE.parent

ALLOWED = frozenset((*machine_path.ALLOWED, "__future__"))
#: For people only; nothing on the machine path may import them.
HUMAN = (
    "gpurun.cli.human",
    "gpurun.cli.rows",
    "gpurun.cli.terminal",
    "gpurun.cli.topics",
    "gpurun.commands.documents",
    "gpurun.library.explanation",
    "gpurun.builder.launcher",
)
HUMAN_ROOMS = (*HUMAN, "gpurun.builder.bytecode")
#: Imports on a path that has already failed or is a person's, inside a function: (module, what).
LATE = {
    ("gpurun.oci.reader", "json.decoder"),  # to say where a broken document is broken
    ("gpurun.__main__", "gpurun.cli.human"),
    ("gpurun.__main__", "gpurun.commands.containers"),  # a name, where no container has that id
    ("gpurun.__main__", "gpurun.commands.all_containers"),  # to say where the container is that is not there
    ("gpurun.commands.inspect", "gpurun.commands.all_containers"),  # list --all
    ("gpurun.commands.lifecycle", "gpurun.commands.trace"),  # --trace
    ("gpurun.commands.lifecycle", "gpurun.network.attach"),  # --network
    ("gpurun.engine.caller.delete", "gpurun.network.attach"),  # a container that was given a network so
    ("gpurun.engine.caller.mount_hint", "gpurun.oci.schema"),  # a mount that has failed
    ("gpurun.ns.netdev", "pyroute2.iproute.linux"),  # linux.netDevices
    ("gpurun.ns.netdev", "pyroute2.netlink.exceptions"),
    ("gpurun.ns.options", "difflib"),  # an option that has been refused
    ("gpurun.formats.yaml", "yaml"),  # a CDI file whose value is not kept yet
    ("gpurun.formats.toml", "tomllib"),  # a configuration file whose value is not kept yet
    ("gpurun.commands.lifecycle", "re"),  # --regex
    ("gpurun.engine.state", "pwd"),  # the name of a caller that is not root
}


def run_time_imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere in *tree*, but for ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield from run_time_imports(other)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else str(node.module)
        else:
            yield from run_time_imports(node)


def reachable(*roots: str) -> set[str]:
    """The modules of gpurun that *roots* import, now or later, without those for people."""
    todo, seen = list(roots), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for wanted in run_time_imports(parsed(FILES[name])):
            if wanted in FILES and (name, wanted) not in LATE and wanted not in HUMAN_ROOMS:
                todo.append(wanted)
    return seen


#: The commands that ARCHITECTURE.md promises it of.
SHIMS_CALL = "create start state kill delete run exec ps pause resume update".split()
#: The programs there are, and the modules of these commands.
ROOTS = ["gpurun.__main__", "gpurun.launcher.boot", "gpurun.engine.inside.init", "gpurun.engine.inside.exec_init"]
ROOTS += ["gpurun.gpu.nvidia.host.nvml"]  # asked by create for MIG devices named by UUID
ROOTS += ["gpurun.toolkit.runtime", "gpurun.toolkit.amd_runtime"]  # create, called by the names of makers' runtimes
ROOTS += sorted({COMMANDS[name]["handler"].partition(":")[0] for name in SHIMS_CALL})


def test_source_imports_only_what_is_cheap() -> None:
    modules = reachable(*ROOTS)
    assert len(modules) > 100
    wrong = [
        f"{name} imports {wanted}"
        for name in sorted(modules)
        for wanted in run_time_imports(parsed(FILES[name]))
        if not wanted.startswith("gpurun") and (name, wanted) not in LATE and wanted not in ALLOWED
    ]
    assert not wrong


def test_what_is_left_out_is_there() -> None:
    """A name that fits nothing would leave out nothing, or something else by the time that it fits."""
    assert [name for name in HUMAN_ROOMS if name not in FILES] == []
    unused = [(name, wanted) for name, wanted in LATE if wanted not in run_time_imports(parsed(FILES[name]))]
    assert unused == []


def test_the_document_has_the_list() -> None:
    text = (PACKAGE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert f"`{' '.join(machine_path.ALLOWED)}`" in text
    assert f"`{' '.join(SHIMS_CALL)}`" in text


PROBE = """#!{python} -IS
import sys
before = set(sys.modules)
sys.path.insert(0, {source!r})
from gpurun.__main__ import main
import posix
code = main()
data = " ".join(sorted(set(sys.modules) - before)) + chr(10)
fd = posix.open({out!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o644)
posix.write(fd, data.encode())
posix.close(fd)
sys.exit(code)
"""


def make_probe(directory: Path) -> tuple[Path, Callable[[], set[str]]]:
    """A gpurun that writes down what it has imported, and what it has written since the last question."""
    out = directory / "modules"
    program = directory / "gpurun"
    python = getattr(sys, "_base_executable", sys.executable)
    program.write_text(PROBE.format(python=python, source=str(SOURCE), out=str(out)))
    program.chmod(0o755)

    def taken() -> set[str]:
        words = set(out.read_text().split())
        out.unlink()
        return {w for w in words if not w.startswith("gpurun")}

    return program, taken


@pytest.mark.parametrize("command", ["start", "state", "kill", "delete"])
def test_commands_without_a_container(command: str, tmp_path: Path) -> None:
    program, taken = make_probe(tmp_path)
    done = subprocess.run([program, "--root", tmp_path / "state", command, "x"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "does not exist" in done.stderr
    assert taken() <= ALLOWED


def test_refused_config(tmp_path: Path) -> None:
    program, taken = make_probe(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"ociVersion": "1.0.0", "root": 1}))
    args = [str(program), "--root", str(tmp_path / "state"), "create", "--bundle", str(tmp_path), "x"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "root" in done.stderr, done
    assert taken() <= ALLOWED


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_whole_life(runtime: Runtime, bundle: Callable[..., Bundle]) -> None:
    """create, start, state, kill, delete and run of real containers."""
    program, taken = make_probe(runtime.directory)
    runtime.path = str(program)
    assert runtime.run(bundle().args("true")).rc == 0
    assert taken() <= ALLOWED, "run"
    container = runtime.create(bundle().args("sleep", "60"))
    assert taken() <= ALLOWED, "create"
    assert container.start().rc == 0
    assert container.state()["status"] == "running"
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete().rc == 0
    assert taken() <= ALLOWED, "start, state, kill, delete"


@pytest.mark.native
@pytest.mark.gpurun_only
def test_network_devices_bring_pyroute2(runtime: Runtime, bundle: Callable[..., Bundle]) -> None:
    """The one config that imports more; so the probe above would see it in any other."""
    program, taken = make_probe(runtime.directory)
    source = json.dumps(sysconfig.get_path("purelib"))
    program.write_text(program.read_text().replace("from gpurun", f"sys.path.append({source})\nfrom gpurun", 1))
    runtime.path = str(program)
    b = bundle()
    b.linux["netDevices"] = {"nosuchdev0": {}}
    assert "nosuchdev0" in runtime.refused(b)
    assert "pyroute2.iproute.linux" in taken()
