"""A container's record of its GPUs by key: what `explain --running` says after an upgrade, and when numbers have moved."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.needs_nodes import require_nodes
from tests.simcards import Host, intel
from tests.simdriver import Options, SimulatedDriver, bus_id, minor

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]
HOST = Options(gpus=2)
#: Minors of this worker alone, and of this file.
FIRST = 9000 + 64 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture
def arc(place: Path) -> Iterator[Host]:
    with intel.arc_for_containers(place, FIRST) as host:
        yield host


def started(runtime: Runtime, bundle: MakeBundle, env: dict[str, str], *variables: str) -> Container:
    b = bundle().args("sleep", "60")
    b.process["env"] += variables
    return runtime.start(b, env=env)


def record(runtime: Runtime, container: Container) -> Path:
    return Path(str(runtime.root), container.id, "gpus")


def told(runtime: Runtime, container: Container, env: dict[str, str]) -> list[dict[str, Any]]:
    said = runtime("explain", "--json", "--running", container.id, env=env)
    assert said.rc == 0, said
    gpus: list[dict[str, Any]] = json.loads(said.out)["gpus"]
    return gpus


def test_keys_are_on_record(runtime: Runtime, bundle: MakeBundle, arc: Host) -> None:
    env = ENVIRONMENT | arc.env
    container = started(runtime, bundle, env, f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    path, before = record(runtime, container), f"intel:{intel.B580}"
    assert path.read_text() == f"226:{FIRST + 129}={before}"
    assert runtime("gpu", "attach", container.id, intel.A770, env=env).rc == 0
    assert set(path.read_text().split()) == {f"226:{FIRST + 129}={before}", f"226:{FIRST + 128}=intel:{intel.A770}"}
    assert {(gpu["key"], gpu["since"]) for gpu in told(runtime, container, env)} == {
        (before, "create"),
        (f"intel:{intel.A770}", "attach"),
    }
    assert runtime("gpu", "detach", container.id, intel.B580, env=env).rc == 0
    assert path.read_text() == f"226:{FIRST + 128}=intel:{intel.A770}"


def test_a_container_of_an_older_gpurun_goes_on(runtime: Runtime, bundle: MakeBundle, arc: Host) -> None:
    env = ENVIRONMENT | arc.env
    container = started(runtime, bundle, env, f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    record(runtime, container).write_text(f"226:{FIRST + 129}")
    (gpu,) = told(runtime, container, env)
    assert (gpu["key"], gpu["since"], gpu["given"]) == (f"intel:{intel.B580}", "create", "")
    for words in (("attach", container.id, intel.A770), ("detach", container.id, intel.B580)):
        done = runtime("gpu", *words, env=env)
        assert done.rc == 0, done
    assert [gpu["key"] for gpu in told(runtime, container, env)] == [f"intel:{intel.A770}"]
    assert runtime("exec", container.id, "true", env=env).rc == 0


def test_a_number_that_is_another_gpus_by_now(runtime: Runtime, bundle: MakeBundle, arc: Host) -> None:
    """The driver was unbound from both and bound in another order: the container can open what it was not given."""
    env = ENVIRONMENT | arc.env
    container = started(runtime, bundle, env, f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    path = record(runtime, container)
    path.write_text(path.read_text().replace(intel.B580, intel.A770))
    (gpu,) = told(runtime, container, env)
    assert (gpu["key"], gpu["since"], gpu["given"]) == (f"intel:{intel.B580}", "moved", f"intel:{intel.A770}")
    said = runtime("explain", "--running", container.id, env=env).out
    assert f"/dev/dri/renderD{FIRST + 129} {intel.B580}, where {intel.A770} was given\n" in said
    done = runtime("gpu", "detach", container.id, intel.B580, env=env)
    assert done.rc == 0 and told(runtime, container, env) == [], done


def test_a_gpu_that_is_gone_is_named(runtime: Runtime, bundle: MakeBundle, arc: Host) -> None:
    env = ENVIRONMENT | arc.env
    container = started(runtime, bundle, env, f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    (arc.path / f"sys/bus/pci/drivers/xe/{intel.B580}").unlink()
    (gpu,) = told(runtime, container, env)
    assert gpu["shown"] == "a GPU that this host does not have now" and gpu["key"] == f"intel:{intel.B580}"
    assert gpu["name"] == intel.B580 and gpu["node"] == f"/dev/dri/renderD{FIRST + 129}"


def test_nodes_for_drawing_are_of_the_gpu(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """The DRM node of an NVIDIA GPU is none of another maker's, and is not told as a GPU of its own."""
    require_nodes(host.real_nodes)
    env = ENVIRONMENT | host.env
    container = started(runtime, bundle, env, "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert "renderD" in runtime("exec", container.id, "ls", "/dev/dri", env=env).out
    assert record(runtime, container).read_text() == f"195:{minor(1, 2)}=nvidia:{bus_id(1)}"
    assert [gpu["node"] for gpu in told(runtime, container, env)] == [f"/dev/nvidia{minor(1, 2)}"]
    gone = told(runtime, container, ENVIRONMENT)
    assert [(gpu["node"], gpu["name"]) for gpu in gone] == [(f"/dev/nvidia{minor(1, 2)}", bus_id(1))]
