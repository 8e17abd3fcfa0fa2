"""Reading the kernel's log: whose records count, and what happens when the log runs away while it is read."""

from __future__ import annotations

import posix
from pathlib import Path

import pytest

from gpurun.linux.kmsg import kernel_messages


def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *answers: bytes | OSError) -> list[bytes]:
    """What comes of a log of which each read(2) gives the next of *answers*; the descriptor must be closed after."""
    (tmp_path / "kmsg").touch()
    left = list(answers)
    files: list[int] = []

    def read(fd: int, size: int) -> bytes:
        assert size >= 8192, "the kernel answers EINVAL"
        files.append(fd)
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("gpurun.linux.kmsg.posix.read", read)
    found = list(kernel_messages(str(tmp_path / "kmsg")))
    assert not left
    with pytest.raises(OSError):
        posix.fstat(files[0])
    return found


END = BlockingIOError(11, "Resource temporarily unavailable")


def test_the_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = (b"6,1,12,-;first\n", b"3,2,13,c,caller=T1;a;b\n SUBSYSTEM=pci\n DEVICE=+pci:0\n", END)
    assert records(monkeypatch, tmp_path, *read) == [b"first", b"a;b"]


def test_what_is_not_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A privileged container can write to the log, with any facility but the kernel's."""
    read = (b"12,1,12,-;oom-kill:forged\n", b"30,2,13,-;systemd[1]: said\n", b"7,3,14,-;true\n", b"nonsense\n", END)
    assert records(monkeypatch, tmp_path, *read) == [b"true"]


def test_records_that_were_overwritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = (b"6,1,12,-;first\n", BrokenPipeError(32, "Broken pipe"), b"6,90,15,-;later\n", END)
    assert records(monkeypatch, tmp_path, *read) == [b"first", b"later"]


@pytest.mark.parametrize("end", [b"", OSError(22, "Invalid argument"), END])
def test_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: bytes | OSError) -> None:
    assert records(monkeypatch, tmp_path, b"6,1,12,-;first\n", end) == [b"first"]


def test_no_log(tmp_path: Path) -> None:
    assert list(kernel_messages(str(tmp_path / "none"))) == []
