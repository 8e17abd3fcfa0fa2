"""Limits of GPU memory by NVML for a container's cgroup: what is left when a command is killed or a cgroup vanishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cdi.edits import MemoryLimit
from gpurun.engine.gpus import memory_limits
from gpurun.engine.gpus.memory_limits import RECORD, set_limits, take_away
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.host.nvml import NO_LIMIT

ROOT, LIBRARY = "/sys/fs/cgroup", "/usr/lib/libnvidia-ml.so.1"
SOFT = MemoryLimit("GPU-a", 2 << 30, 1 << 30, LIBRARY, "process.env NVIDIA_GPU_MEMORY_LIMIT")
HARD = MemoryLimit("GPU-b", 2 << 30, library=LIBRARY, where="process.env NVIDIA_GPU_MEMORY_LIMIT")


class Nvml:
    """Calls of NVML's function, each (cgroup, GPUs, hard limit); *fails* is what the next one raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[str, ...], int]] = []
        self.fails: BaseException | None = None

    def __call__(self, root: str, cgroup: str, limits: tuple[MemoryLimit, ...]) -> None:
        assert root == ROOT and {limit.library for limit in limits} == {LIBRARY}
        self.calls.append((cgroup, tuple([limit.gpu for limit in limits]), limits[0].hard))
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setattr(memory_limits, "set_memory_limits", made)
    return made


def place(tmp_path: Path, name: str = "one") -> tuple[str, str]:
    """(the cgroup, the state directory) of a container."""
    for kind in ("cgroup", "state"):
        (tmp_path / kind / name).mkdir(parents=True)
    return str(tmp_path / "cgroup" / name), str(tmp_path / "state" / name)


class Killed(BaseException):
    """The command ends at this call."""


def test_a_command_that_is_killed_while_it_sets_them(tmp_path: Path, nvml: Nvml) -> None:
    """The record is there before: whoever clears up takes back what may have been set."""
    cgroup, state = place(tmp_path)
    nvml.fails = Killed()
    with pytest.raises(Killed):
        set_limits(ROOT, cgroup, (SOFT, HARD), state)
    nvml.fails = None
    assert take_away(state) == ()
    assert nvml.calls == [(cgroup, ("GPU-a", "GPU-b"), 2 << 30), (cgroup, ("GPU-a", "GPU-b"), NO_LIMIT)]
    assert take_away(state) == (), "a second delete"


def test_hard_limits_alone_go_with_the_cgroup(tmp_path: Path, nvml: Nvml) -> None:
    cgroup, state = place(tmp_path)
    set_limits(ROOT, cgroup, (HARD,), state)
    assert not Path(state, RECORD).exists() and take_away(state) == () and len(nvml.calls) == 1


def test_a_cgroup_that_vanishes(tmp_path: Path, nvml: Nvml) -> None:
    cgroup, state = place(tmp_path)
    set_limits(ROOT, cgroup, (SOFT,), state)
    nvml.fails = GpuError("NVML: not found")  # between our look and its call
    (warning,) = take_away(state)
    assert warning.startswith(f"the GPU's memory that is reserved for {cgroup} stays reserved") and "not found" in warning
    Path(cgroup).rmdir()
    assert take_away(state) == () and len(nvml.calls) == 2


def test_a_cgroup_that_vanishes_while_they_are_set(tmp_path: Path, nvml: Nvml) -> None:
    cgroup, state = place(tmp_path)
    nvml.fails = GpuError("no such cgroup")
    with pytest.raises(GpuError, match=r"^process.env NVIDIA_GPU_MEMORY_LIMIT: the limit .* cannot be set: no such cgroup"):
        set_limits(ROOT, cgroup, (SOFT,), state)


def test_two_at_once_know_their_own(tmp_path: Path, nvml: Nvml) -> None:
    one, other = place(tmp_path, "one"), place(tmp_path, "other")
    for cgroup, state in (one, other):
        set_limits(ROOT, cgroup, (SOFT,), state)
    assert take_away(one[1]) == ()
    assert nvml.calls[2:] == [(one[0], ("GPU-a",), NO_LIMIT)]
    assert Path(other[1], RECORD).exists()


@pytest.mark.parametrize("text", [b"", b"x", b"a\nb", bytes(range(256)), b"\n" * 5, b"lib\n/sys/fs/cgroup\n\0\nGPU-a"])
def test_a_record_that_is_damaged_keeps_no_container(tmp_path: Path, nvml: Nvml, text: bytes) -> None:
    """A machine that lost its power may leave one: delete goes on."""
    _, state = place(tmp_path)
    Path(state, RECORD).write_bytes(text)
    (warning,) = take_away(state)
    assert warning == f"{state}/{RECORD} is damaged: memory of a GPU that it says is reserved stays so" and nvml.calls == []
    with pytest.raises(GpuError, match="is damaged"):
        set_limits(ROOT, "/sys/fs/cgroup/x", (SOFT,), state)
