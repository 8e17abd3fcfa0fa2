"""The example bundles of placement, run as they are, by what the kernel says; the same policies asked for by the site."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import Options, make
from tests.systemd.conftest import Driver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

EXAMPLES = REPOSITORY / "examples/bundles"


def example(name: str, runtime: Runtime) -> Bundle:
    directory = runtime.directory / name
    shutil.copytree(EXAMPLES / name, directory, symlinks=True)
    return Bundle(directory, json.loads((directory / "config.json").read_text()))


def said(out: str) -> dict[str, str]:
    pairs = [line.partition(": ") for line in out.splitlines()]
    return {name: value.strip() for name, _, value in pairs}


@pytest.mark.needs("memory")
def test_memory(runtime: Runtime, leaks: Leaks) -> None:
    found = said(runtime.output(example("placement-memory", runtime)))
    high = int((512 << 20) * 0.87) & ~4095
    assert found == {
        "memory.max": str(512 << 20),
        "memory.high": str(high),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }


@pytest.mark.needs("cpuset")
def test_cpus(runtime: Runtime, leaks: Leaks) -> None:
    found = said(runtime.output(example("placement-cpus", runtime)))
    assert found == {"cpuset.cpus.effective": "1", "cpuset.cpus.partition": "root"}


@pytest.mark.needs("io")
def test_io(runtime: Runtime, leaks: Leaks) -> None:
    assert said(runtime.output(example("placement-io", runtime))) == {"io.weight": "default 50"}


@pytest.mark.needs("cpuset")
def test_gpu(runtime: Runtime, leaks: Leaks) -> None:
    """The first GPU of the simulated driver is on node 0, as all that such a machine has."""
    place = runtime.directory / "host"
    place.mkdir(mode=0o755)
    driver = make(place, Options(gpus=1))
    result = runtime.run(example("placement-gpu", runtime), env=ENVIRONMENT | driver.env)
    assert result.rc == 0, result.text
    assert said(result.out)["cpuset.mems.effective"] == "0"


@pytest.mark.needs("memory", "io")
def test_the_site_asks(driver: Driver, bundle: MakeBundle, tmp_path: Path) -> None:
    """Policies of the site's file, by the kernel's values; update of the limit takes memory.high along."""
    site = tmp_path / "config.toml"
    site.write_text('[placement]\nmemory.high = "0.5"\nmemory.swap = "off"\nio.weight = 300\ngpu.local = true\n')
    env = ENVIRONMENT | {"GPURUN_CONFIG": str(site)}
    made = bundle().args("sleep", "1000")
    made.linux["resources"]["memory"] = {"limit": 64 << 20}
    container = driver.start(made, env=env)
    path = driver.cgroup(container)
    files = ("memory.high", "memory.swap.max", "io.weight")
    assert [(path / f).read_text().split("\n")[0] for f in files] == [str(32 << 20), "0", "default 300"]
    assert container.result.text == "", "what the site wants and this container cannot have is no warning"
    assert driver.runtime("update", "--memory", "32m", container.id, env=env).rc == 0
    assert (path / "memory.high").read_text() == f"{16 << 20}\n"
    site.write_text("[placement]\nmemory.high = 2\n")
    assert "config.toml: placement.memory.high" in driver.create(bundle(), check=False, env=env).result.text


@pytest.mark.needs("memory")
def test_a_parent_with_processes(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """The cgroup of the caller itself holds a process and can give no memory controller: the error names it."""
    made = bundle()
    made.linux["resources"]["memory"] = {"limit": 64 << 20}
    callers = "/" + str(bed.callers.relative_to(bed.cgroup_root))
    made.linux["cgroupsPath"] = f"{callers}/c"
    text = runtime.refused(made)
    assert 'cannot set linux.resources.memory.limit: there is no memory.max: the cgroup v2 controller "memory"' in text
    assert f'process(es) are in "/sys/fs/cgroup{callers}" itself' in text
    assert not (bed.callers / "c").exists() and (bed.callers / "cgroup.type").read_text() == "domain\n"
