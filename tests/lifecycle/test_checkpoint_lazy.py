"""Memory that stays behind at checkpoint, and is brought over when the restored program asks for it (criu(8))."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.checkpoint import counted, counting, restored, save, wait_count
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

PIPE_MAX_SIZE = Path("/proc/sys/fs/pipe-max-size")
WIDE = 4 << 20  # bytes of a pipe that CRIU serves memory by, where a memory page has 4 KiB
PR_CAPBSET_READ, PR_CAPBSET_DROP, CAP_SYS_RESOURCE = 23, 24, 24
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(autouse=True)
def userfaultfd(image: Path) -> None:
    check = subprocess.run(["criu", "check", "--feature", "uffd-noncoop"], capture_output=True, check=False, timeout=60)
    if check.returncode:
        pytest.skip("this kernel lacks what CRIU needs of userfaultfd(2)")


@pytest.fixture
def wide_pipes() -> Iterator[None]:
    """Pipes as CRIU needs them, also without CAP_SYS_RESOURCE."""
    before = PIPE_MAX_SIZE.read_text()
    if _libc.prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE) or int(before) >= WIDE:
        yield
        return
    try:
        PIPE_MAX_SIZE.write_text(str(WIDE))
    except OSError as e:
        pytest.skip(f"fs.pipe-max-size: {e.strerror}")
    yield
    PIPE_MAX_SIZE.write_text(before)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def served(container: Container, image: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A checkpoint of *container* that serves its memory on *port*, when it has said so; the file of what it says."""
    runtime = container.runtime
    ready, tell = os.pipe()
    files = runtime.new_files()
    dump = runtime.popen(
        *("checkpoint", "--lazy-pages", "--page-server", f"127.0.0.1:{port}", "--status-fd", str(tell)),
        *("--manage-cgroups-mode", "ignore", "--image-path", str(image), container.id),
        files=files,
        pass_fds=(tell,),
    )
    os.close(tell)
    try:
        assert os.read(ready, 2) == b"\0", (files / "err").read_text()
        assert (image / "inventory.img").exists()
        yield dump, files / "err"
    finally:
        os.close(ready)
        dump.kill()
        dump.wait()


@pytest.mark.usefixtures("wide_pipes")
def test_memory_is_brought_over(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """The container goes on under another id with memory of the first, which is gone when it has all been fetched."""
    b = bundle()
    first = counting(runtime, b)
    port = free_port()
    with served(first, image, port) as (dump, said):
        stood = counted(b)[-1]
        ready, tell = os.pipe()
        fetch = ["criu", "lazy-pages", "--page-server", "--address", "127.0.0.1", "--port", str(port), "-D", str(image)]
        fetch += ["--status-fd", str(tell)]
        with subprocess.Popen(fetch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(tell,)) as daemon:
            try:
                os.close(tell)
                assert os.read(ready, 1) == b"\0", "criu lazy-pages has ended"
                os.close(ready)
                how = ("--lazy-pages", "--manage-cgroups-mode", "ignore", "--work-path", str(image))
                name = runtime.new_id()
                b.linux["cgroupsPath"] += f"-{name}"  # the first is there until the last page is
                restored(first, image, *how, container_id=name)
                assert dump.wait(60) == 0, said.read_text()
                assert daemon.wait(60) == 0
            finally:
                daemon.kill()
    assert runtime("state", first.id).rc == 1
    wait_count(b, stood + 3)
    numbers = counted(b)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "it went on where it was"


@pytest.mark.usefixtures("wide_pipes")
def test_without_anybody_who_fetches_it_goes_on(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    b = bundle()
    first = counting(runtime, b)
    port = free_port()
    with served(first, image, port) as (dump, said):
        stood = counted(b)[-1]
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"\xff" * 64)  # which is no request for pages
        assert dump.wait(60) == 1
        assert "criu failed to save the container" in said.read_text()
        wait_count(b, stood + 3)


@pytest.mark.gpurun_only
def test_a_pipe_that_is_too_small_is_said_first(runtime: Runtime, bundle: MakeBundle, image: Path) -> None:
    """CRIU would say that it is ready, and fail at the first page that is asked for."""
    if int(PIPE_MAX_SIZE.read_text()) >= WIDE:
        pytest.skip("pipes may be as large as CRIU needs them here")
    first = counting(runtime, bundle())

    def without_resource() -> None:
        _libc.prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE)

    done = save(first, image, "--lazy-pages", "--page-server", "127.0.0.1:1", preexec=without_resource)
    assert done.rc == 1 and "--lazy-pages: CRIU serves memory by a pipe of 4 MiB" in done.text
    assert "sysctl fs.pipe-max-size=4194304" in done.text
    assert not list(image.glob("*.img")) and first.state()["status"] == "running"
