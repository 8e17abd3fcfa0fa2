"""Docker's ``--gpus`` in all its forms: with gpurun as the runtime, and with runc and gpurun's hook."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable
from tests.native.runtime import Result
from tests.simdriver import Options, SimulatedDriver, bus_id, make, minor
from tests.toolkit.conftest import PROGRAM

pytestmark = [pytest.mark.clients, pytest.mark.native]

ALL = {f"nvidia{minor(index, 2)}" for index in range(2)}
Run = Callable[..., Result]
LOOK = """
ls /dev | grep -E '^nvidia[0-9]+$'
ls /proc/driver/nvidia/gpus
env | grep -E '^NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)='
find / -xdev -name 'libcuda.so.1' -o -xdev -name 'libnvidia-ml.so.1' -o -xdev -name 'libnvidia-encode.so.1'
mount | grep -c '/libcuda.so'
(: <>/dev/nvidiactl) 2>&1 || true
"""


class Gpus(NamedTuple):
    """What a form of the flag gives."""

    minors: frozenset[str]
    libraries: frozenset[str]


@pytest.fixture(scope="module")
def host() -> Iterator[SimulatedDriver]:
    """Where the root of a user namespace can reach its nodes, as it can those in the host's /dev."""
    with tempfile.TemporaryDirectory(prefix="gpurun-gpus.", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield make(Path(name) / "driver", Options(gpus=2))


def daemon(directory: Path, names: Path, host: SimulatedDriver, options: str) -> Iterator[ClientBed]:
    """The runtimes ``gpurun`` and ``other``, which is runc; the daemon finds the hook as after `install-names`."""
    if not (runc := shutil.which("runc")):
        pytest.skip("runc is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{names}:{os.environ['PATH']}")
        patch.setenv("GPURUN_SYSROOT", str(host.path))  # the hook has the daemon's environment
        patch.setenv("NATIVE_DOCKERD_OPTS", options)
        try:
            made = ClientBed({"gpurun": str(PROGRAM), "other": runc}, directory, host.path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
    yield made
    assert made.run("docker", "ps", "-aq").out == ""
    made.close()


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, names: Path, host: SimulatedDriver) -> Iterator[ClientBed]:
    yield from daemon(tmp_path_factory.mktemp("gpus"), names, host, "")


@pytest.fixture(scope="module")
def remapped(tmp_path_factory: pytest.TempPathFactory, names: Path, host: SimulatedDriver) -> Iterator[ClientBed]:
    """A daemon whose containers have user namespaces."""
    yield from daemon(tmp_path_factory.mktemp("gpus"), names, host, "--userns-remap daemon")


@pytest.fixture(params=["gpurun", "other"])
def run(request: pytest.FixtureRequest, docker: ClientBed) -> Run:
    """``run(*options)``: what :data:`LOOK` says in a container with these options."""
    return lambda *options: ask(docker, request.param, *options)


def ask(docker: ClientBed, runtime: str, *options: str) -> Result:
    return docker.run("docker", "run", "--rm", "--runtime", runtime, *options, IMAGE, "sh", "-c", LOOK)


def found(result: Result) -> Gpus:
    assert result.rc == 0, result.text
    words = result.out.split()
    libraries = {word.rpartition("/")[2] for word in words if word.startswith("/") and ".so" in word}
    return Gpus(frozenset(word for word in words if word in ALL), frozenset(libraries))


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("form", "gpus"),
    [
        ("all", (0, 1)),
        ("1", (0,)),
        ("count=1", (0,)),
        ("driver=nvidia,count=all", (0, 1)),
        ("device=1", (1,)),
        ('"device=0,1"', (0, 1)),
    ],
)
def test_which_gpus(run: Run, form: str, gpus: tuple[int, ...]) -> None:
    result = run("--gpus", form)
    assert found(result).minors == {f"nvidia{minor(index, 2)}" for index in gpus}
    assert {bus_id(index) for index in range(2) if bus_id(index) in result.out} == {bus_id(index) for index in gpus}
    assert "No such device or address" in result.out, "the node may be opened, and has no driver behind it"
    assert "\n1\n" in result.out, "libcuda is mounted once"


def test_by_uuid(run: Run, host: SimulatedDriver) -> None:
    uuid = (host.path / f"proc/driver/nvidia/gpus/{bus_id(1)}/information").read_text().partition("GPU-")[2].split()[0]
    assert found(run("--gpus", f"device=GPU-{uuid}")).minors == {f"nvidia{minor(1, 2)}"}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("form", "libraries"),
    [
        ("all,capabilities=utility", {"libnvidia-ml.so.1"}),
        ("all,capabilities=compute", {"libcuda.so.1"}),
        ('all,"capabilities=compute,utility"', {"libcuda.so.1", "libnvidia-ml.so.1"}),
        ("all,capabilities=video", {"libcuda.so.1", "libnvidia-encode.so.1"}),
        ("all", {"libcuda.so.1", "libnvidia-ml.so.1"}),
    ],
)
def test_which_libraries(run: Run, form: str, libraries: set[str]) -> None:
    assert found(run("--gpus", form)).libraries == libraries


def test_beside_the_variables_of_an_image(run: Run) -> None:
    """The flag decides, not what the image asks for: Docker puts its variable behind."""
    assert found(run("--gpus", "device=1", "-e", "NVIDIA_DRIVER_CAPABILITIES=utility")).minors == {f"nvidia{minor(1, 2)}"}


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("device=7", "7: unknown device"),
        ("all,capabilities=nonsense", "could not select device driver"),
        ("driver=other,count=1", "could not select device driver"),
    ],
)
def test_what_cannot_be(run: Run, form: str, why: str) -> None:
    result = run("--gpus", form)
    assert result.rc in (125, 127) and why in result.err, result.text


@pytest.mark.parametrize("runtime", ["gpurun", "other"])
def test_in_a_container_that_goes_on(docker: ClientBed, runtime: str) -> None:
    """exec and restart: each start has the GPU again, once."""
    goes_on(docker, runtime)


@pytest.mark.parametrize("runtime", ["gpurun", "other"])
def test_in_a_user_namespace(remapped: ClientBed, runtime: str) -> None:
    """The nodes are bound, not made: its root may open them, and nothing is seen of the other GPU."""
    result = ask(remapped, runtime, "--gpus", "device=1")
    assert found(result) == Gpus(frozenset({f"nvidia{minor(1, 2)}"}), frozenset({"libcuda.so.1", "libnvidia-ml.so.1"}))
    assert "No such device or address" in result.out, "the node may be opened, and has no driver behind it"
    assert bus_id(1) in result.out and bus_id(0) not in result.out
    host = ask(remapped, runtime, "--userns", "host", "--gpus", "all")
    assert found(host).minors == ALL
    assert found(ask(remapped, runtime)) == Gpus(frozenset(), frozenset()), "none without a request"
    goes_on(remapped, runtime)


def goes_on(docker: ClientBed, runtime: str) -> None:
    name = f"goes-on-{runtime}"
    started = docker.run("docker", "run", "-d", "--name", name, "--runtime", runtime, "--gpus", "1", IMAGE, "sleep", "1000")
    try:
        assert started.rc == 0, started.text
        assert found(docker.run("docker", "exec", name, "sh", "-c", LOOK)).minors == {f"nvidia{minor(0, 2)}"}
        assert docker.run("docker", "restart", "-t", "0", name).rc == 0
        again = docker.run("docker", "exec", name, "sh", "-c", LOOK)
        assert found(again).minors == {f"nvidia{minor(0, 2)}"} and "\n1\n" in again.out, again.text
    finally:
        docker.run("docker", "rm", "-f", name)
