"""Filters kept by content in the state root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine import seccomp as cache
from gpurun.errors import ConfigError
from gpurun.linux import libseccomp
from gpurun.linux import seccomp as ls
from gpurun.oci.seccomp import read_seccomp
from gpurun.record import replace
from gpurun.security.seccomp import SeccompPlan, plan_seccomp

PROGRAM = bytes(range(64))


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / ".seccomp")


def test_what_is_kept_is_found(directory: str) -> None:
    assert cache.load(directory, "a") == b""
    cache.save(directory, "a", PROGRAM)
    assert cache.load(directory, "a") == PROGRAM
    assert cache.load(directory, "b") == b""
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert os.listdir(directory) == ["a"]


@pytest.mark.parametrize("damage", [b"", b"x", bytes(80), PROGRAM])
def test_a_damaged_entry_is_none(directory: str, damage: bytes) -> None:
    cache.save(directory, "a", PROGRAM)
    Path(directory, "a").write_bytes(damage)
    assert cache.load(directory, "a") == b""
    cache.save(directory, "a", PROGRAM)
    assert cache.load(directory, "a") == PROGRAM


def test_one_bit_is_damage(directory: str) -> None:
    cache.save(directory, "a", PROGRAM)
    path = Path(directory, "a")
    whole = path.read_bytes()
    for at in (0, 20, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.load(directory, "a") == b""


def test_a_directory_that_others_can_write_is_not_used(directory: str) -> None:
    cache.save(directory, "a", PROGRAM)
    os.chmod(directory, 0o777)
    assert cache.load(directory, "a") == b""
    cache.save(directory, "b", PROGRAM)
    os.chmod(directory, 0o700)
    assert cache.load(directory, "a") == PROGRAM
    assert cache.load(directory, "b") == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_is_not_used(directory: str) -> None:
    cache.save(directory, "a", PROGRAM)
    os.chown(directory, 1000, 1000)
    assert cache.load(directory, "a") == b""


def test_links_are_not_followed(directory: str, tmp_path: Path) -> None:
    cache.save(directory, "a", PROGRAM)
    os.rename(Path(directory, "a"), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", Path(directory, "a"))
    assert cache.load(directory, "a") == b""
    os.rename(directory, tmp_path / "moved")
    os.symlink(tmp_path / "moved", directory)
    cache.save(directory, "b", PROGRAM)
    assert not (tmp_path / "moved" / "b").exists()


def test_the_cache_is_bounded_and_loses_the_oldest(directory: str) -> None:
    for i in range(cache.MAX_ENTRIES * 2):
        cache.save(directory, f"e{i}", PROGRAM)
        os.utime(Path(directory, f"e{i}"), (i, i))
    left = sorted(int(name[1:]) for name in os.listdir(directory))
    assert len(left) <= cache.MAX_ENTRIES
    assert left == list(range(cache.MAX_ENTRIES * 2 - len(left), cache.MAX_ENTRIES * 2))


def test_what_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache.save(str(tmp_path / "file"), "a", PROGRAM)
    cache.save(str(tmp_path / "none" / "none"), "a", PROGRAM)


def plan(**more: Any) -> SeccompPlan:
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}], **more}
    made = plan_seccomp(read_seccomp(profile, "linux.seccomp"), os.uname().machine)
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
    assert len(os.listdir(f"{root}/.seccomp")) == 1
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
    assert len(os.listdir(tmp_path / ".seccomp")) == 2


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
    assert len(os.listdir(tmp_path / ".seccomp")) == 1


def kernel(monkeypatch: pytest.MonkeyPatch, known: int | None) -> None:
    """A kernel that takes the flags *known*, or (None) no filters."""
    monkeypatch.setattr(ls, "flags_supported", lambda flags: known is not None and not flags & ~known)


def test_flags_that_the_kernel_lacks(tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, 2)
    assert cache.make_filter(plan(), str(tmp_path))[1] == 0  # nobody asked for SPEC_ALLOW
    with pytest.raises(ConfigError, match=r"^linux.seccomp.flags: this kernel does not know .*_SPEC_ALLOW$"):
        cache.make_filter(plan(flags=["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"]), str(tmp_path))
    kernel(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"^linux.seccomp: this kernel has no seccomp filters"):
        cache.make_filter(plan(), str(tmp_path))


def test_the_flags_of_this_kernel() -> None:
    assert "SECCOMP_FILTER_FLAG_LOG" in cache.supported_flags()
    assert not ls.flags_supported(1 << 20)
