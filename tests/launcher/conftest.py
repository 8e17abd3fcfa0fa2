"""The programs of this room, built once; a container of the store with a process that sleeps."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.builder.front import BASE, compile_front, compiler, join
from gpurun.builder.launcher import assemble, real_interpreter
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast
from tests.launcher.front import Store
from tests.native.runtime import Container, Runtime


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bare``: the program with nothing behind it; ``whole``: as it is built; ``pure``: the launcher alone; ``checked``:
    bare, with every access to memory checked."""
    made = tmp_path_factory.mktemp("front")
    program = compile_front(compiler())
    launcher = assemble(real_interpreter(), commit="0123456789ab")
    (made / "bare").write_bytes(program)
    (made / "whole").write_bytes(join(program, assemble(real_interpreter(), commit="0123456789ab", base=BASE)))
    (made / "pure").write_bytes(launcher)
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE")
    try:
        (made / "checked").write_bytes(compile_front(compiler(), sanitizers))
    except (subprocess.CalledProcessError, ValueError):
        pass  # a compiler without the sanitizers' libraries
    for path in made.iterdir():
        path.chmod(0o755)
    return made


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps, for a container's first one."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def store(tmp_path: Path, sleeper: int) -> Store:
    return Store(tmp_path, sleeper)


@pytest.fixture
def fast(runtime: Runtime, places: Path) -> Iterator[Fast]:
    path = runtime.path
    yield Fast(runtime, places)
    runtime.path = path


@pytest.fixture
def container(fast: Fast, bundle: MakeBundle) -> Container:
    """One that runs, with a plan for exec."""
    made = fast.runtime.start(bundle().sh(FOREVER))
    fast.prime(made, made.id, "true")
    return made
