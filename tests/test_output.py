"""Output that is lost is an error: exit code 1 and a sentence, in every command that prints anything."""

from __future__ import annotations

import ast
import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import runtime_path
from tests.launcher.front import Store
from tests.native.bundle import base_config

SOURCE = Path(__file__).resolve().parents[1] / "src/gpurun"
LOST = "cannot write to stdout: no space left on device"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A state root with a container ``c`` whose process sleeps."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield Store(tmp_path, process.pid)
        process.kill()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle/rootfs").mkdir(parents=True)
    (tmp_path / "bundle/config.json").write_text(json.dumps(base_config()))
    return tmp_path / "bundle"


def lost(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What the command says on stderr when stdout has no room; its exit code must be 1."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(word) for word in command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=env or {}
        )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "help",
        "help create",
        "create --help",
        "features",
        "list",
        "list -q",
        "list -f json",
        "state c",
        "help gpu",
    ],
)
def test_what_every_command_prints(store: Store, words: str) -> None:
    said = lost(runtime_path(), "--root", store.root, *words.split())
    assert LOST in said and said.count("\n") == 1


@pytest.mark.parametrize("words", [["explain"], ["explain", "--json"], ["validate"]])
def test_what_is_printed_of_a_bundle(bundle: Path, words: list[str]) -> None:
    assert LOST in lost(runtime_path(), *words, bundle)


def test_it_is_in_the_log_as_well(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lost(runtime_path(), "--root", store.root, "--log", log, "--log-format", "json", "state", "c")
    assert [json.loads(line)["msg"] for line in log.read_text().splitlines()] == [LOST]


@pytest.mark.parametrize(
    "command",
    [
        "nvidia-ctk --version",
        "nvidia-ctk --help",
        "nvidia-ctk runtime --help",
        "nvidia-ctk config",
        "nvidia-container-cli -V",
        "nvidia-container-cli --help",
        "nvidia-container-runtime --version",
        "nvidia-container-runtime-hook -version",
        "nvidia-container-runtime-hook -help",
        "nvidia-cdi-hook --version",
        "nvidia-cdi-hook --help",
    ],
)
def test_nvidias_programs(tmp_path: Path, command: str) -> None:
    name, *words = command.split()
    (tmp_path / name).symlink_to(runtime_path())
    assert LOST in lost(tmp_path / name, *words)


def test_links_that_are_made(tmp_path: Path) -> None:
    assert LOST in lost(runtime_path(), "install-names", tmp_path)


def test_completion() -> None:
    words = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": "gpurun del", "COMP_CWORD": "1"}
    assert LOST in lost(runtime_path(), env=words)


def test_a_reader_that_is_gone(store: Store) -> None:
    read, write = os.pipe()
    os.close(read)
    for words in (("state", "c"), ("list",), ("features",)):
        done = subprocess.run(
            [runtime_path(), "--root", str(store.root), *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60
        )
        assert done.returncode == 1 and "cannot write to stdout: broken pipe" in done.stderr
    os.close(write)


@pytest.mark.parametrize("words", [("state", "c"), ("list",), ("features",)])
def test_what_was_written_before_is_not_written_again(store: Store, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A file system that is full in the midst of it: here a limit on the size of files."""
    whole = subprocess.run(
        [runtime_path(), "--root", store.root, *words], capture_output=True, timeout=60, check=True
    ).stdout
    out = tmp_path / "out"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    with out.open("wb") as file:
        command = [runtime_path(), "--root", str(store.root), *words]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, preexec_fn=limited)
    assert (done.returncode, out.read_bytes()) == (1, whole[:40])
    assert "cannot write to stdout: file too large" in done.stderr and done.stderr.count("\n") == 1


def test_there_is_one_way_out() -> None:
    """Whatever prints goes through gpurun/output.py, also what click and argparse print."""
    others = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent.name in ("builder", "launcher") or path.name == "output.py":
            continue  # the build's own words; the launcher's last look at what is in a buffer
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                others.append(f"{path}:{node.lineno}: print")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.stderr.write":
                if path.name != "ctk.py":  # records of the log, which are escaped
                    others.append(f"{path}:{node.lineno}: sys.stderr")
            elif (
                isinstance(node, ast.Attribute)
                and node.attr in ("stdout", "__stdout__")
                and ast.unparse(node.value) == "sys"
            ):
                if not isinstance(node.ctx, ast.Store) and path.name != "__main__.py":
                    others.append(f"{path}:{node.lineno}: sys.stdout")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "posix.write" and ast.unparse(node.args[0]) == "1":
                others.append(f"{path}:{node.lineno}: posix.write(1, ...)")
    assert not others
