"""The mounts that df(1) sees: masks are of a file system that the container has anyway."""

from __future__ import annotations

import os

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

#: Of each mount below /proc, its device: as mountinfo has it.
MASKS = 'awk \'$5 ~ "^/proc/" && $4 == "/null" {print $3, $5, $6}\' /proc/self/mountinfo'


def test_masked_files_are_behind_the_containers_own_null(runtime: Runtime, bundle: MakeBundle) -> None:
    own, *masks = runtime.output(bundle().sh(f"stat -c %d /dev; {MASKS}")).splitlines()
    device = f"{os.major(int(own))}:{os.minor(int(own))}"
    assert [mask.split()[1] for mask in masks] and "/proc/keys" in [mask.split()[1] for mask in masks]
    assert {mask.split()[0] for mask in masks} == {device}


@pytest.mark.gpurun_only
def test_masks_are_read_only(runtime: Runtime, bundle: MakeBundle) -> None:
    masks = runtime.output(bundle().sh(MASKS)).splitlines()
    assert masks and all("ro" in mask.split()[2].split(",") for mask in masks)
