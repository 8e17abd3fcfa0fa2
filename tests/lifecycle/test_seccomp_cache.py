"""Compiled profiles are kept beside the state's root, and found again by the next container."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.cachefile import directory_of
from tests.conftest import MakeBundle
from tests.lifecycle.test_seccomp import MKDIR, rule, under
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def create_traced(runtime: Runtime, b: Bundle, log: Path) -> str:
    """Create under strace; what create itself (not the init, which stays) has opened."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    tracer = ["strace", "-e", "trace=open,openat", "-o", str(log)]
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    command = [*tracer, *runtime.argv, "create", "--bundle", str(b.directory), container_id]
    done = subprocess.run(command, preexec_fn=runtime.bed.enter(), stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0
    return log.read_text()


def cache_of(runtime: Runtime) -> Path:
    return Path(directory_of(str(runtime.root), "seccomp"))


@pytest.mark.gpurun_only
def test_the_second_container_does_not_load_libseccomp(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    profile = rule("ERRNO", *MKDIR)
    assert "libseccomp.so.2" in create_traced(runtime, under(bundle(), profile), tmp_path / "first")
    second = create_traced(runtime, under(bundle(), profile), tmp_path / "second")
    assert "/.state.seccomp" in second
    assert "libseccomp" not in second


@pytest.mark.gpurun_only
def test_the_cache_is_no_container(runtime: Runtime, bundle: MakeBundle) -> None:
    b = under(bundle().args("true"), rule("ERRNO", *MKDIR))
    assert runtime.run(b).rc == 0
    cache = cache_of(runtime)
    assert len(os.listdir(cache)) == 1 and cache.stat().st_mode & 0o777 == 0o700
    listed = runtime("list", "--format", "json")
    assert (listed.rc, listed.out, listed.err) == (0, "null\n", "")
    for command in (("state",), ("delete", "--force"), ("kill",)):
        result = runtime(*command, ".seccomp")
        assert result.rc == 1 and "invalid container ID format" in result.text
    assert len(os.listdir(cache)) == 1


@pytest.mark.gpurun_only
def test_another_build_compiles_itself(
    runtime: Runtime, bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same version: what it compiles may be another program."""
    b = under(bundle().args("true"), rule("ERRNO", *MKDIR))
    assert runtime.run(b).rc == 0
    monkeypatch.setattr(runtime, "path", shutil.copy(runtime.path, tmp_path / "gpurun"))
    for _ in range(2):
        assert runtime.run(b).rc == 0
        assert len(os.listdir(cache_of(runtime))) == 2


@pytest.mark.gpurun_only
def test_a_damaged_cache_is_made_again(runtime: Runtime, bundle: MakeBundle) -> None:
    b = under(bundle().args("mkdir", "/tmp/made"), rule("ERRNO", *MKDIR))
    runtime.run(b)
    (entry,) = (cache_of(runtime)).iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-8], whole[:-1] + b"\0"):
        entry.write_bytes(damaged)
        assert "Operation not permitted" in runtime.run(b).err
        assert entry.read_bytes() == whole
