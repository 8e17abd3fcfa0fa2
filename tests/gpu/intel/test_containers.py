"""Containers with Intel's GPUs: what they see and may open, leases, attach and detach.  Simulated: no card is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simcards import Host, intel

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

#: Minors of this worker alone: every container of the machine with such a node counts.
FIRST = 5000 + 64 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
CARD, RENDER = [f"card{FIRST + i}" for i in range(4)], [f"renderD{FIRST + 128 + i}" for i in range(4)]
NO_DRIVER, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def arc(place: Path) -> Iterator[Host]:
    with intel.arc_for_containers(place, FIRST) as host:
        yield host


@pytest.fixture
def gpu(bundle: MakeBundle) -> Callable[..., Bundle]:
    def build(devices: str) -> Bundle:
        made = bundle()
        made.process["env"] += [f"GPURUN_VISIBLE_DEVICES={devices}"]
        return made

    return build


def opened(path: str) -> str:
    return f"(: <>{path}) 2>&1 | sed 's/.*: //'"


def test_a_container_has_its_gpu_alone_and_its_groups(runtime: Runtime, arc: Host, gpu: Callable[..., Bundle]) -> None:
    made = gpu("intel:1").capabilities("CAP_MKNOD")
    script = (
        "ls /dev/dri; for l in /dev/dri/by-path/*; do echo ${l##*/} $(readlink $l); done; id -G; "
        f"{opened(f'/dev/dri/{RENDER[1]}')}; mknod /root/x c 226 {FIRST + 128}; {opened('/root/x')}; rm /root/x; "
        f"stat -c '%a %g' /dev/dri/{RENDER[1]}"
    )
    out = runtime.output(made.sh(script), env=ENVIRONMENT | arc.env).splitlines()
    assert out == [
        "by-path",
        CARD[1],
        RENDER[1],
        f"pci-{intel.B580}-card ../{CARD[1]}",
        f"pci-{intel.B580}-render ../{RENDER[1]}",
        "0 44 992",
        NO_DRIVER,
        DENIED,
        "660 992",
    ]


def test_a_user_without_privileges_can_open_its_gpu(runtime: Runtime, arc: Host, gpu: Callable[..., Bundle]) -> None:
    """0660 and a group that the image does not know: the commonest complaint."""
    made = gpu(intel.VF)
    made.process["user"] = {"uid": 1000, "gid": 1000}
    out = runtime.output(made.sh(f"id -u; {opened(f'/dev/dri/{RENDER[3]}')}"), env=ENVIRONMENT | arc.env)
    assert out.split("\n")[:2] == ["1000", NO_DRIVER]


def test_what_is_not_there_leaves_nothing(runtime: Runtime, arc: Host, gpu: Callable[..., Bundle]) -> None:
    done = runtime.run(gpu(intel.PF).sh("true"), env=ENVIRONMENT | arc.env)
    assert (
        done.rc and f"its virtual functions are what containers get: {intel.VF}" in done.err and "Traceback" not in done.err
    )


def test_free_attach_and_detach(runtime: Runtime, arc: Host, gpu: Callable[..., Bundle]) -> None:
    env = ENVIRONMENT | arc.env
    first = runtime.start(gpu("free:2").sh("exec sleep 600"), env=env)
    second = runtime.start(gpu("free;vendor=intel").sh("exec sleep 600"), env=env)

    def has(one: str) -> list[str]:
        return runtime("exec", one, "sh", "-c", "ls /dev/dri/by-path | grep render", env=env).out.split()

    names = [f"pci-{pci}-render" for pci in (intel.A770, intel.B580, intel.VF)]
    assert sorted(has(first.id) + has(second.id)) == names
    told = runtime("exec", first.id, "sh", "-c", "echo $GPURUN_VISIBLE_DEVICES", env=env).out.strip()
    assert [f"pci-{pci}-render" for pci in told.split(",")] == has(first.id)
    full = runtime.run(gpu("free").sh("true"), env=env)
    assert full.rc and "leased by" in full.err
    gone = told.split(",")[0]
    done = runtime("gpu", "detach", first.id, gone, env=env)
    assert done.rc == 0, done.text
    assert f"pci-{gone}-render" not in has(first.id)
    done = runtime("gpu", "attach", second.id, gone, env=env)
    assert done.rc == 0, done.text
    assert f"pci-{gone}-render" in has(second.id)
    minor = next(int((arc.path / "dev/dri/by-path" / n).readlink().name[7:]) for n in names if gone in n)
    said = runtime("exec", second.id, "sh", "-c", opened(f"/dev/dri/renderD{minor}"), env=env).out.strip()
    assert said == NO_DRIVER
