"""What /proc says of a process."""

from __future__ import annotations

import os

import pytest

from gpurun.errors import GpurunError
from gpurun.linux import procfs


def test_ourselves() -> None:
    found = procfs.stat(os.getpid())
    assert found is not None and found[0] == "R" and procfs.is_alive(os.getpid(), found[1])
    assert procfs.parent(os.getpid()) == os.getppid()
    assert procfs.cgroups("self") == procfs.cgroups(os.getpid()) != []


def test_a_process_that_is_not_there() -> None:
    assert procfs.stat(0) is None and procfs.parent(0) == 0 and not procfs.is_alive(0, 1)


@pytest.mark.parametrize("data", [b"", b"77 (a b", b"77 (x) R 1 2", b"77 (x) R" + b" x" * 30])
def test_a_stat_that_no_kernel_writes(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read_file", lambda path, limit: data)
    assert procfs.parent(77) in (0, 1)
    with pytest.raises(GpurunError, match="/proc/77/stat is not as the kernel writes it"):
        procfs.stat(77)


def test_names_of_cgroups() -> None:
    """All but a newline may be in one, also what Python takes for the end of a line."""
    text = "9:devices:/a\x1d0::/another\n1:name=systemd:/b:c\n0::/mine\x0c\u2028x\n"
    assert procfs.parse_cgroups(text) == [
        ("devices", "/a\x1d0::/another"),
        ("name=systemd", "/b:c"),
        ("", "/mine\x0c\u2028x"),
    ]
