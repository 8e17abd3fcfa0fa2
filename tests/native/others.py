"""Runtimes, the one under test and others beside it, and new bundles for them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.bed import Bed
from tests.native.bundle import Bundle, Config, base_config, make_rootfs
from tests.native.runtime import Runtime


@contextmanager
def runtime_at(path: str, bed: Bed, place: Path) -> Iterator[Runtime]:
    """The runtime *path*, with a state directory of its own, which must be empty of containers when the test is over."""
    made = Runtime(path, bed, Path(tempfile.mkdtemp(dir=place)))
    made.directory.chmod(0o711)
    yield made
    made.cleanup()
    shutil.rmtree(made.directory)


@contextmanager
def another(name: str, bed: Bed, place: Path) -> Iterator[Runtime]:
    """The runtime *name*: that of the variable of its name in capitals (RUNC=/path), or on PATH.  Skips where it is not."""
    path = os.environ.get(name.upper()) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    with runtime_at(path, bed, place) as made:
        yield made


def new_bundle(runtime: Runtime, busybox: Path, config: Config | None = None) -> Bundle:
    """A bundle of its own below *runtime*'s directory, with a rootfs of *busybox*."""
    directory = Path(tempfile.mkdtemp(prefix="bundle.", dir=runtime.directory))
    directory.chmod(0o711)
    made = Bundle(directory, base_config() if config is None else config)
    make_rootfs(made.rootfs, busybox)
    return made


def skip_if_memlock_is_raised(runtime: Runtime, busybox: Path) -> None:
    """crun raises RLIMIT_MEMLOCK for each container, in some versions, which takes CAP_SYS_RESOURCE."""
    if "RLIM_MEMLOCK" in runtime.run(new_bundle(runtime, busybox).args("true"), stdin=b"").text:
        pytest.skip(f"this {runtime.name} raises RLIMIT_MEMLOCK, which is not permitted here (CRUN=/path: another one)")
