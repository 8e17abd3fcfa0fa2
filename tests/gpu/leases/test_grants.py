"""Containers that hide their GPUs, by renaming the nodes in their /dev: the device program still says who has them."""

from __future__ import annotations

import errno
import json
import posix
from typing import Any

import pytest

from gpurun.engine import state as store
from gpurun.engine.checkpoint import checkpoint_devices
from gpurun.engine.checkpoint.criu_options import outside
from gpurun.errors import GpurunError
from gpurun.gpu.leases import grants as room
from gpurun.gpu.leases.grants import Grants
from gpurun.oci.config import read_config
from gpurun.record import replace
from tests.conftest import MakeBundle
from tests.gpu.leases.box import DENIED, GPUS, NO_DRIVER, Box, MakeBox
from tests.gpu.leases.conftest import MakeHost
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def hide(one: Box, index: int) -> str:
    """Rename the node of the GPU *index* in the container, and return its new name."""
    one.sh(f"mkdir -p /dev/.a; mv /dev/nvidia{minor(index, GPUS)} /dev/.a/x{index}; mv /dev/nvidia-uvm /dev/.a/uvm")
    return f"/dev/.a/x{index}"


@pytest.mark.parametrize("force", [False, True])
def test_detach_takes_a_hidden_gpu(box: MakeBox, force: bool) -> None:
    one = box("3")
    name = hide(one, 3)
    assert NO_DRIVER in one.sh(f": <>{name}")
    done = one.gpu("detach", "3", options=("--force",) if force else ())
    assert done.rc == 0, done.text
    assert DENIED in one.sh(f": <>{name}") and one.opens(3) == DENIED
    assert one.sees()["names"] == ["none"]


def test_a_hidden_gpu_is_not_free(box: MakeBox, runtime: Runtime) -> None:
    one, other = box("3"), box()
    hide(one, 3)
    refused = other.gpu("attach", f"free:{GPUS}")
    assert refused.rc == 1 and f"{GPUS} GPUs wanted, {GPUS - 1} of {GPUS} free" in refused.text
    other.attach(f"free:{GPUS - 1}")
    assert uuid(3) not in other.sees()["names"]


def test_update_takes_a_hidden_gpu(box: MakeBox, runtime: Runtime) -> None:
    one = box("free:1")
    (name,) = one.sees()["names"]
    index = next(i for i in range(GPUS) if uuid(i) == name)
    hide(one, index)
    done = runtime("update", "--gpus", "none", one.id, env=one.env)
    assert done.rc == 0, done.text
    assert one.opens(index) == DENIED
    assert json.loads(runtime("gpu", "leases", "--json", env=one.env).out)["leases"] == []


def test_a_checkpoint_names_a_hidden_gpu(box: MakeBox, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a restore is told comes from what the container cannot change, and not from the names in its /dev."""
    one = box("3")
    hide(one, 3)
    monkeypatch.setattr(checkpoint_devices, "own_environment", lambda: one.env)
    cgroup = runtime.bed.cgroup(one.container.cgroup())  # gpurun sees it elsewhere than this process
    state = replace(store.load(str(runtime.root), one.id), cgroup=str(cgroup))
    config = read_config((runtime.root / one.id / "config.json").read_bytes())
    saved = checkpoint_devices.saved_devices(str(runtime.root), state, config, outside(config, state.bundle))
    assert saved is not None and saved.gpus == ((3, uuid(3)),)


def test_a_node_of_its_own_making_gives_it_no_gpu(box: MakeBox) -> None:
    one = box("0")
    one.sh(f"mknod /dev/nvidia{minor(1, GPUS)} c {one.major} {minor(1, GPUS)}")
    done = one.gpu("detach", "1")
    assert done.rc == 1 and f"the container does not have 1: its GPUs are GPU 0 ({uuid(0)})" in done.text


def test_where_all_is_allowed_the_record_says_it(
    runtime: Runtime,
    bundle: MakeBundle,
    make_host: MakeHost,
) -> None:
    def privileged(b: Any) -> None:
        b.linux["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    nvidia = make_host(GPUS, major=195)  # what is recorded of a container are the GPUs with NVIDIA's number
    bundled = bundle().sh("exec sleep 600").capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
    bundled.process["env"] += ["NVIDIA_VISIBLE_DEVICES=2"]
    privileged(bundled)
    env = ENVIRONMENT | nvidia.env
    one = Box(runtime, runtime.start(bundled, env=env), env, 195)
    name = hide(one, 2)
    one.detach("2")
    assert DENIED in one.sh(f": <>{name}")


def test_no_descriptor_left_is_an_error(box: MakeBox) -> None:
    """What cannot be looked at is not taken for nothing, however many descriptors are left."""
    one = box("0")
    hide(one, 0)
    answers = [one.gpu("detach", "1", tracer=["prlimit", f"--nofile={limit}"]) for limit in range(4, 16)]
    assert all(answer.rc != 0 and "its GPUs are none" not in answer.text for answer in answers), answers
    assert any(f"its GPUs are GPU 0 ({uuid(0)})" in answer.text for answer in answers), answers
    assert any("too many open files" in answer.text for answer in answers), answers


def test_who_cannot_compute_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nodes: a monitor that may open GPUs and nothing to compute with does not count."""
    allowed = {(195, 0), (195, 255)}
    monkeypatch.setattr(room, "cgroup_of", lambda pid: "/some")
    monkeypatch.setattr(room, "device_programs", lambda path: (b"code",))
    monkeypatch.setattr(room, "granted_numbers", lambda programs, numbers: frozenset(numbers) & frozenset(allowed))
    wanted = frozenset({(195, 0), (195, 1)})
    assert Grants(wanted, frozenset({(510, 0)}))(1) == frozenset()
    allowed.add((510, 0))
    assert Grants(wanted, frozenset({(510, 0)}))(1) == {(195, 0)}
    assert Grants(wanted, frozenset())(1) == frozenset()
    allowed.add((226, 128))
    assert Grants(wanted, frozenset())(1) == {(195, 0)}


def test_what_the_kernel_does_not_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "")

    monkeypatch.setattr(room, "cgroup_of", lambda pid: "/some")
    grants = Grants(frozenset({(195, 0)}), frozenset({(510, 0)}))
    monkeypatch.setattr(posix, "open", full)
    with pytest.raises(GpurunError, match="too many open files"):
        grants(1)
