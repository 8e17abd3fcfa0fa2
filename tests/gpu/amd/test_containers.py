"""Containers with AMD's GPUs, on a simulated host: what they may open, as whom, and what comes while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.gpu.machine_cells import sentences
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, Host, amd

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

LOOK = "ls /dev/dri /dev/dri/by-path; id -G; for n in /dev/kfd /dev/dri/render*; do (: <>$n) 2>&1 | sed 's/.*: //'; done"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = amd.mi210(tmp_path / "host", count=2)
    require_nodes(made.real_nodes)
    return made


def test_its_own_gpu_in_the_groups_of_the_host(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    made = bundle()
    made.process["env"].append(f"AMD_VISIBLE_DEVICES={amd.MI210[0][0]}")
    out = runtime.output(made.sh(LOOK), env=ENVIRONMENT | host.env)
    assert "renderD128" in out and "renderD129" not in out and f"pci-{amd.MI210[0][0]}-render" in out
    assert {str(VIDEO), str(RENDER)} <= set(out.split())
    assert "No such device" in out, "it may be opened; there is no driver"  # ENXIO or ENODEV, as the kernel's modules are
    assert "not permitted" not in out and "denied" not in out


def test_a_container_that_may_be_without_gpus(runtime: Runtime, bundle: MakeBundle, host: Host, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nowhere = ENVIRONMENT | {"GPURUN_SYSROOT": str(tmp_path / "empty")}

    def asking(value: str) -> Bundle:
        made = bundle().sh("ls /dev/dri || echo none")
        made.process["env"] += ["AMD_VISIBLE_DEVICES=all", f"GPURUN_GPU_OPTIONAL={value}"]
        return made

    assert "renderD129" in runtime.output(asking("true"), env=ENVIRONMENT | host.env)
    result = runtime.run(asking("true"), env=nowhere)
    assert (result.rc, result.out) == (0, "none\n")
    assert "no AMD GPU that computes" in runtime.refused(asking("false"), env=nowhere)


def test_exec_has_the_groups_and_what_is_attached(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    made = bundle()
    made.process["env"].append("AMD_VISIBLE_DEVICES=0")
    env = ENVIRONMENT | host.env
    container = runtime.start(made.args("sleep", "1000"), env=env)
    done = runtime("gpu", "attach", container.id, "amd:1", env=env)
    assert done.rc == 0, done.text
    done = runtime("exec", container.id, "sh", "-c", f"{LOOK}; echo $AMD_VISIBLE_DEVICES", env=env)
    out = done.out
    assert {str(VIDEO), str(RENDER)} <= set(out.split()) and "renderD128" in out and "renderD129" in out, done.text
    assert out.split()[-1] == f"{amd.MI210[1][0]},{amd.MI210[0][0]}"


@pytest.mark.parametrize("opened", [True, False])
def test_who_has_listed_the_gpus_already_is_named(runtime: Runtime, bundle: MakeBundle, host: Host, opened: bool) -> None:
    """ROCm does it when it opens /dev/kfd.  The simulated node cannot be opened: it has the numbers of /dev/zero here."""
    host.write("sys/devices/virtual/kfd/kfd/dev", "1:5")
    (host.path / "dev/kfd").unlink()
    host.node("kfd", 1, 5, RENDER)
    made = bundle()
    made.process["env"].append("AMD_VISIBLE_DEVICES=0")
    env = ENVIRONMENT | host.env
    container = runtime.start(made.sh(f"{'exec 3</dev/kfd; ' if opened else ''}echo ready; exec sleep 1000"), env=env)
    container.wait_for("ready\n")
    done = runtime("gpu", "attach", container.id, "amd:1", env=env)
    who = f"process {container.pid} (sleep) of {container.id}"
    said = f"{who}: ROCm has listed the GPUs already, and finds the new one in processes that start now"
    assert (done.rc, done.out, sentences(done.err, warnings=True)) == (0, "", [said] if opened else []), done
    assert "renderD128" in runtime("exec", container.id, "ls", "/dev/dri", env=env).out


@pytest.fixture
def amds(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """The runtime under test, called as amd-container-runtime."""
    link = tmp_path / "bin/amd-container-runtime"
    link.parent.mkdir()
    link.symlink_to(Path(runtime.path).resolve())
    monkeypatch.setattr(runtime, "path", str(link))
    return runtime


@pytest.mark.parametrize(
    ("value", "renders"),
    [
        ("1,7,x", {"renderD128"}),
        ("7", set()),
        ("all,0", {"renderD129"}),
        ("none", set()),
        ("All", {"renderD128", "renderD129"}),
    ],
)
def test_under_the_name_of_amds_runtime_unknown_ids_are_passed_over(
    amds: Runtime, bundle: MakeBundle, host: Host, value: str, renders: set[str]
) -> None:
    made = bundle()
    made.process["env"].append(f"AMD_VISIBLE_DEVICES={value}")
    result = amds.run(made.sh("ls /dev/dri 2>/dev/null; ls /dev/kfd 2>/dev/null; true"), env=ENVIRONMENT | host.env)
    assert result.rc == 0, result.text
    assert {word for word in result.out.split() if word.startswith("renderD")} == renders
    assert ("/dev/kfd" in result.out) == bool(renders)


def test_under_gpuruns_own_name_unknown_ids_are_refused_unless_the_site_says_otherwise(
    runtime: Runtime, bundle: MakeBundle, host: Host, tmp_path: Path
) -> None:
    made = bundle()
    made.process["env"].append("AMD_VISIBLE_DEVICES=1,7")
    made.args("ls", "/dev/dri")
    env = ENVIRONMENT | host.env
    assert "7: unknown device" in runtime.refused(made, env=env)
    site = tmp_path / "config.toml"
    site.write_text('[amd]\nunknown = "ignore"\n')
    result = runtime.run(made, env={**env, "GPURUN_CONFIG": str(site)})
    assert result.rc == 0 and "renderD128" in result.out, result.text
    assert "none of this host's 2 AMD GPUs is 7: ignored" in result.text
    site.write_text('[amd]\nunknown = "sometimes"\n')
    assert 'amd.unknown: must be "refuse" or "ignore"' in runtime.refused(made, env={**env, "GPURUN_CONFIG": str(site)})
