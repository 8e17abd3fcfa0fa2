"""Containers that count in their memory, saved and restored: whether they go on where they were."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.native.bundle import Bundle
from tests.native.runtime import Container, Result, Runtime
from tests.native.waiting import wait_until

# What it counts is only in its memory; the streams are the container's own, for runc cannot take files that lie outside.
COUNT = "exec </dev/null >/dev/null 2>&1; i=0; while :; do i=$((i+1)); echo $i >>/tmp/count; sleep 0.01; done"


@functools.cache
def why_not() -> str:
    """Why CRIU cannot be used here; "" if it can."""
    if not shutil.which("criu"):
        return "criu is not installed"
    done = subprocess.run(["criu", "check"], capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else f"criu check: {done.stderr.strip().splitlines()[-1:]}"


def save(container: Container, image: Path, *options: str, **how: Any) -> Result:
    return container.runtime("checkpoint", *options, "--image-path", str(image), container.id, **how)


def saved(container: Container, image: Path, *options: str, **how: Any) -> None:
    done = save(container, image, *options, **how)
    assert done.rc == 0, done.text
    if "--leave-running" not in options:
        container.wait()
        gone = container.runtime("state", container.id)
        assert gone.rc == 1 and "container does not exist" in gone.text


def restored(container: Container, image: Path, *options: str, container_id: str = "", **how: Any) -> Container:
    """The container made again from *image*, under its own id unless another is given."""
    runtime, bundle = container.runtime, container.bundle
    files = runtime.new_files()
    name = container_id or container.id
    pid_file = str(files / "pid")
    bundle.write()
    done = runtime(
        *("restore", "--detach", "--bundle", str(bundle.directory), "--pid-file", pid_file),
        *("--image-path", str(image), *options, name),
        files=files,
        **how,
    )
    assert done.rc == 0, done.text
    made = Container(runtime, name, bundle, done, files)
    runtime.containers.append(made)
    return made


def counted(bundle: Bundle) -> list[int]:
    path = bundle.rootfs / "tmp/count"
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wait_count(bundle: Bundle, more_than: int) -> None:
    wait_until(lambda: max(counted(bundle), default=0) > more_than)


def counting(runtime: Runtime, b: Bundle, *options: str) -> Container:
    container = runtime.start(b.sh(COUNT), *options)
    wait_count(b, 3)
    return container
