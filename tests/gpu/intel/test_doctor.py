"""``gpurun gpu doctor`` on a host of Intel's: what is missing, and the command that mends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.gpu.doctor import examine as examine_host
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.intel.doctor import examine
from tests.needs_nodes import require_nodes
from tests.simcards import Host, intel
from tests.simdriver import Options, make


@pytest.fixture
def arc(tmp_path: Path) -> Host:
    made = intel.arc(tmp_path / "host")
    require_nodes(made.real_nodes)
    return made


@pytest.fixture
def gaudi(tmp_path: Path) -> Host:
    made = intel.gaudi(tmp_path / "host")
    require_nodes(made.real_nodes)
    return made


def said(host: Host) -> dict[str, Finding]:
    return {one.subject: one for one in examine(str(host.path)) if one.verdict != "ok"}


def test_a_healthy_host(arc: Host) -> None:
    found = examine(str(arc.path))
    assert [(one.subject, one.verdict) for one in found] == [
        ("Intel's drivers", "ok"),
        ("Intel's GPUs", "ok"),
        ("Intel's GPUs", "note"),
        ("Intel's device nodes", "ok"),
        ("groups of Intel's nodes", "ok"),
        ("limits of GPU memory", "note"),
    ]
    assert "`uname -r`" in found[-1].text
    assert found[1].text.startswith(f"3: 0 = Intel Arc A770 ({intel.A770}), 1 = Intel Arc B580 ({intel.B580}), 2 = ")
    assert found[2].text == f"{intel.PF} is divided: containers get its virtual functions (1), not itself"


def test_a_healthy_host_with_accelerators(gaudi: Host) -> None:
    found = examine(str(gaudi.path))
    assert [(one.subject, one.verdict) for one in found] == [
        ("Gaudi", "ok"),
        ("Gaudi's device nodes", "ok"),
        ("groups of Gaudi's nodes", "ok"),
    ]
    assert found[0].text == "2: 0 = 0000:19:00.0, 1 = 0000:1a:00.0"


def test_limits_of_memory(arc: Host) -> None:
    gpus = (intel.A770, intel.B580, intel.VF)
    arc.write("sys/fs/cgroup/dmem.capacity", "\n".join([f"drm/{pci}/vram0 {1 << 33}" for pci in gpus[1:]]))
    found = said(arc)["limits of GPU memory"]
    assert f"does not count the memory of {intel.A770}: amdgpu and xe have it do so" in found.text
    arc.write("sys/fs/cgroup/dmem.capacity", "\n".join([f"drm/{pci}/vram0 {1 << 33}" for pci in gpus]))
    assert "limits of GPU memory" not in said(arc)


def test_a_card_that_the_loaded_driver_does_not_take(arc: Host) -> None:
    for pci, kind, driver in (
        ("0000:09:00.0", "0x030000", ""),
        ("0000:0a:00.0", "0x020000", ""),
        ("0000:0b:00.0", "0x038000", "v"),
    ):
        for name, content in (("vendor", "0x8086"), ("device", "0xfd80"), ("class", kind)):
            arc.write(f"sys/bus/pci/devices/{pci}/{name}", content)
        if driver:
            arc.link(f"sys/bus/pci/devices/{pci}/driver", "sys/bus/pci/drivers/vfio-pci")
    notes = [one.text for one in examine(str(arc.path)) if "no driver" in one.text]
    assert len(notes) == 1 and notes[0].startswith("0000:09:00.0 (device fd80)") and "`xe.force_probe=fd80`" in notes[0]


def test_gpus_that_do_not_work(arc: Host) -> None:
    quiet = len(examine(str(arc.path)))
    i915, xe = (arc.path / f"sys/bus/pci/drivers/{path}" for path in (f"i915/{intel.A770}", f"xe/{intel.B580}"))
    (i915 / "drm/card0/error").write_text("No error state collected\n")
    (arc.path / "sys/class/devcoredump/devcd1").mkdir(parents=True)
    (arc.path / "sys/class/devcoredump/devcd1/failing_device").symlink_to("../../../0000:99:00.0")
    assert len(examine(str(arc.path))) == quiet
    (i915 / "drm/card0/error").write_text("GPU HANG: ecode 12:1:85dffffb\n")
    (xe / "survivability_mode").write_text("")
    (arc.path / "sys/class/devcoredump/devcd1/failing_device").unlink()
    (arc.path / "sys/class/devcoredump/devcd1/failing_device").symlink_to(f"../../../{intel.B580}")
    texts = [f"{one.verdict}: {one.text}" for one in examine(str(arc.path)) if one.subject == "Intel's GPUs"]
    assert any(text.startswith(f"note: {intel.A770} has hung") and "`echo 1 > " in text for text in texts)
    assert any(
        text.startswith(f"fail: {intel.B580} is in survivability mode") and "`fwupdmgr update`" in text for text in texts
    )
    assert any(text.startswith(f"note: {intel.B580} was reset within") for text in texts)


def _without_drm(dev: Path) -> None:
    for name in ("i915", "xe"):
        for link in (dev.parent / "sys/bus/pci/drivers" / name).iterdir():
            shutil.rmtree(link.resolve() / "drm", ignore_errors=True)


@pytest.mark.parametrize(
    ("spoil", "subject", "verdict", "words"),
    [
        (
            lambda dev: (dev / "dri/renderD129").unlink(),
            "Intel's device nodes",
            "fail",
            "`udevadm trigger",
        ),
        (lambda dev: (dev / "dri/card1").unlink(), "Intel's device nodes", "fail", "the host lacks "),
        (lambda dev: (dev / "dri/renderD128").chmod(0o600), "groups of Intel's nodes", "note", 'GROUP="render"'),
        (
            lambda dev: os.chown(dev / "dri/renderD128", 0, 0),
            "groups of Intel's nodes",
            "note",
            "only root or its",
        ),
        (_without_drm, "Intel's GPUs", "fail", "none has device nodes"),
    ],
)
def test_what_is_broken(arc: Host, spoil: Callable[[Path], None], subject: str, verdict: str, words: str) -> None:
    spoil(arc.path / "dev")
    found = said(arc)[subject]
    assert found.verdict == verdict and words in found.text


def test_what_is_broken_of_accelerators(gaudi: Host) -> None:
    (gaudi.path / "dev/accel/accel1").unlink()
    found = said(gaudi)["Gaudi's device nodes"]
    assert found.verdict == "fail" and "dev/accel/accel1: `udevadm trigger --subsystem-match=accel` makes" in found.text
    for link in (gaudi.path / "sys/bus/pci/drivers/habanalabs").iterdir():
        shutil.rmtree(link.resolve() / "accel")
    assert said(gaudi)["Gaudi"].text.startswith("habanalabs is loaded and has no accelerator")


def subjects(host: Host) -> list[tuple[str, str]]:
    return [(one.subject, one.verdict) for one in examine_host(host.env) if one.subject not in ("cgroup", "BPF", "CDI")]


def test_the_doctor_asks_each_maker_that_the_host_has_something_of(tmp_path: Path) -> None:
    arc = subjects(intel.arc(tmp_path / "arc"))
    assert "Intel's GPUs" in dict(arc) and "kernel module" not in dict(arc)
    gaudi = subjects(intel.gaudi(tmp_path / "gaudi"))
    assert "Gaudi" in dict(gaudi) and "kernel module" not in dict(gaudi) and "Intel's GPUs" not in dict(gaudi)
    both = subjects(intel.arc(make(tmp_path / "both", Options(drm=False)).path, functions=False))
    assert {"kernel module", "Intel's GPUs"} <= {*dict(both)}
    nothing = subjects(Host(tmp_path / "nothing"))
    assert nothing == [("configuration", "ok"), ("GPUs", "fail")]


def test_a_card_whose_driver_is_not_loaded(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002")
    host.write("sys/bus/pci/devices/0000:03:00.0/class", "0x038000")
    found = {one.subject: one for one in examine_host(host.env)}
    assert found["GPUs"].verdict == "fail" and "`modprobe amdgpu`" in found["GPUs"].text
    beside = make(tmp_path / "nvidia", Options(nodes=False))
    for name in ("vendor", "class"):
        source = tmp_path / f"sys/bus/pci/devices/0000:03:00.0/{name}"
        (beside.path / "sys/bus/pci/devices/0000:03:00.0").mkdir(parents=True, exist_ok=True)
        shutil.copy(source, beside.path / f"sys/bus/pci/devices/0000:03:00.0/{name}")
    notes = [one for one in examine_host(beside.env) if "`modprobe amdgpu`" in one.text]
    assert [one.verdict for one in notes] == ["note"], "NVIDIA's GPUs work without it"
