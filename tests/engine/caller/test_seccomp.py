"""Filters kept by content beside the state root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cachefile import directory_of
from gpurun.engine.caller import seccomp as cache
from gpurun.errors import ConfigError
from gpurun.linux import libseccomp
from gpurun.linux import seccomp as ls
from gpurun.oci.seccomp import read_seccomp
from gpurun.record import replace
from gpurun.security.seccomp import SeccompPlan, plan_seccomp


def plan(**more: Any) -> SeccompPlan:
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}], **more}
    made = plan_seccomp(read_seccomp(profile), os.uname().machine)
    assert made is not None
    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that libseccomp is loaded."""
    if not libseccomp.find()[0]:
        pytest.skip("libseccomp is not in the usual directories")
    from gpurun.security import seccomp_compile

    times: list[str] = []
    load: Callable[..., libseccomp.Library] = seccomp_compile.load_library

    def counted(where: str, path: str = "") -> libseccomp.Library:
        times.append(path)
        return load(where, path)

    monkeypatch.setattr(seccomp_compile, "load_library", counted)
    return times


def test_the_second_time_libseccomp_is_not_loaded(tmp_path: Path, compiled: list[str]) -> None:
    root = str(tmp_path / "root")
    first = cache.make_filter(plan(), root)
    assert len(compiled) == 1
    assert cache.make_filter(plan(), root) == first
    assert len(compiled) == 1
    assert len(os.listdir(tmp_path / ".root.seccomp")) == 1
    assert os.stat(root).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "change",
    [
        {"default_action": 0x80000000},
        {"architectures": (0xC000003E, 0x40000003)},
        {"enosys": True},
        {"rules": ()},
        {"where": "seccomp"},
    ],
)
def test_another_profile_is_another_entry(tmp_path: Path, compiled: list[str], change: dict[str, Any]) -> None:
    cache.make_filter(plan(), str(tmp_path))
    cache.make_filter(replace(plan(), **change), str(tmp_path))
    assert len(compiled) == 2
    assert len(os.listdir(directory_of(str(tmp_path), "seccomp"))) == 2


def test_another_library_is_another_entry(tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, identity = libseccomp.find()
    cache.make_filter(plan(), str(tmp_path))
    monkeypatch.setattr(libseccomp, "find", lambda: (path, identity + "1"))
    cache.make_filter(plan(), str(tmp_path))
    assert len(compiled) == 2


def test_a_library_in_an_unusual_place_is_asked_for_its_version(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libseccomp, "find", lambda: ("", ""))
    first = cache.make_filter(plan(), str(tmp_path))
    assert cache.make_filter(plan(), str(tmp_path)) == first
    assert compiled == ["", ""]
    assert len(os.listdir(directory_of(str(tmp_path), "seccomp"))) == 1


def kernel(monkeypatch: pytest.MonkeyPatch, known: int | None) -> None:
    """A kernel that takes the flags *known*, or (None) no filters."""
    monkeypatch.setattr(ls, "flags_supported", lambda flags: known is not None and not flags & ~known)


def test_flags_that_the_kernel_lacks(tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, 2)
    assert cache.make_filter(plan(), str(tmp_path))[1] & ls.KERNEL_FLAGS == 0  # nobody asked for SPEC_ALLOW
    with pytest.raises(ConfigError, match=r"^linux.seccomp.flags: this kernel does not know .*_SPEC_ALLOW$"):
        cache.make_filter(plan(flags=["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"]), str(tmp_path))
    kernel(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"^linux.seccomp: this kernel has no seccomp filters"):
        cache.make_filter(plan(), str(tmp_path))


def test_the_flags_of_this_kernel() -> None:
    assert "SECCOMP_FILTER_FLAG_LOG" in cache.supported_flags()
    assert not ls.flags_supported(1 << 20)
