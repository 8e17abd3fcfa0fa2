"""The programs of this room, built once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpurun.launcher.build import assemble, real_interpreter
from gpurun.launcher.front import BASE, compile_front, compiler, join


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
