"""What an init that could not be made is told with: who may make namespaces, and what to do."""

from __future__ import annotations

from errno import EACCES, EINVAL, ENOSPC, EPERM

import pytest

from gpurun.linux.process import CLONE_NEWNS, CLONE_NEWUSER
from gpurun.ns.namespaces import NamespacePlan
from gpurun.ns.spawn import _remedy


@pytest.mark.parametrize(
    ("new", "errno", "words"),
    [
        (CLONE_NEWUSER, EACCES, "AppArmor may keep the program that called from making user namespaces"),
        (CLONE_NEWUSER, EPERM, "this host does not let unprivileged users create user namespaces"),
        (CLONE_NEWNS, EPERM, "this takes CAP_SYS_ADMIN"),
        (CLONE_NEWUSER, ENOSPC, "as many namespaces as user.max_*_namespaces allows"),
    ],
)
def test_what_to_do(new: int, errno: int, words: str) -> None:
    assert words in _remedy(NamespacePlan(new), errno)


@pytest.mark.parametrize(("new", "errno"), [(CLONE_NEWNS, EACCES), (CLONE_NEWUSER, EINVAL)])
def test_nothing_is_guessed(new: int, errno: int) -> None:
    assert _remedy(NamespacePlan(new), errno) == ""
