"""What is said of a system call that failed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpurun.errors import StepError, oserror_text
from gpurun.linux.files import write_atomically

FULL = "has no free blocks or no free inodes (df, df -i)"


def test_whose_space_it_is() -> None:
    assert str(StepError("write", "/run/x", errno.ENOSPC)) == (
        f"write /run/x: no space left on device: the file system of /run/x {FULL}"
    )
    assert str(StepError("write", "/run/x", errno.EDQUOT)).endswith(
        ": the quota of this user is used up on that file system (quota)"
    )
    assert "fs.mount-max" in str(StepError("mount", "/run/x", errno.ENOSPC))
    assert "user.max_" in str(StepError("make the user namespace", "", errno.ENOSPC))
    assert str(StepError("write", "/run/x", errno.ENOSPC, "do that")).endswith("no space left on device: do that")
    assert str(StepError("write", "/run/x", errno.EIO)) == "write /run/x: input/output error"
    assert oserror_text(OSError(errno.ENOSPC, "", "/x")) == f"/x: no space left on device: the file system of /x {FULL}"


def test_a_write_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("gpurun.linux.files.write_all", full)
    with pytest.raises(OSError, match="state") as caught:
        write_atomically(f"{tmp_path}/state", b"x", 0o600)
    assert oserror_text(caught.value).startswith(f"{tmp_path}/state: no space left on device: the file system of")
    assert not list(tmp_path.iterdir())
