"""The numbers of system calls, as libseccomp knows them: of every machine, on any machine."""

from __future__ import annotations

import importlib.util
import os
import platform
from types import ModuleType, SimpleNamespace

import pytest

from gpurun.linux import libc, libseccomp, seccomp

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@pytest.fixture(scope="module")
def library() -> libseccomp.Library:
    try:
        return libseccomp.Library()
    except OSError as e:
        pytest.skip(f"libseccomp is not installed: {e}")


def on(machine: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """*module*, imported a second time as it would be on *machine*."""
    found = importlib.util.find_spec(module.__name__)
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    with monkeypatch.context() as patch:
        patch.setattr("posix.uname", lambda: SimpleNamespace(machine=machine))
        found.loader.exec_module(made)
    return made


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_of_system_calls(library: libseccomp.Library, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = on(machine, libc, monkeypatch).NR
    assert len(numbers) > 30
    assert numbers == {name: library.resolve(name, MACHINES[machine]) for name in numbers}


@pytest.mark.parametrize("machine", MACHINES)
def test_number_of_execve(library: libseccomp.Library, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "_machine", machine)
    made = on(machine, seccomp, monkeypatch)
    assert library.resolve("execve", MACHINES[machine]) == made._EXECVE


def test_every_machine_has_the_same_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = [on(machine, libc, monkeypatch).NR for machine in MACHINES]
    assert all(set(first) == set(other) for other in others)


def test_this_machine_is_one_of_them() -> None:
    assert platform.machine() in MACHINES
    assert os.getpid() == libc.syscall({"x86_64": 39, "aarch64": 172}[platform.machine()])
