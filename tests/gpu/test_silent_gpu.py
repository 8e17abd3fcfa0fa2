"""A GPU whose driver does not tell how it is divided: nobody waits for it, it is given to nobody, and costs the others
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.amd.cdi import generate
from gpurun.gpu.amd.cluster import cluster_gpus
from gpurun.gpu.amd.doctor import examine
from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.amd.survey import survey as survey_of_amd
from gpurun.gpu.host import driver_reads, reads
from gpurun.gpu.leases.allocator import Requester, preview
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.linux.files import read_file
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd
from tests.simcards.held import hang

SECOND = "0000:25:00.0"
FILE = f"sys/bus/pci/drivers/amdgpu/{SECOND}/current_compute_partition"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Two MI300X in CPX, of which the driver of the second hangs."""
    made = amd.mi300x(tmp_path / "host", gpus=2)
    require_nodes(made.real_nodes)
    monkeypatch.setattr(reads, "read_regular", read_file)
    monkeypatch.setattr(driver_reads, "_until", {})
    monkeypatch.setattr(driver_reads, "_last", {})
    monkeypatch.setattr(driver_reads, "LIMIT_S", 2.0)
    hang(made.path / FILE)
    monkeypatch.setattr("gpurun.gpu.leases.container_nodes.containers_with_nodes", lambda granted: ())  # of other tests
    return made


def said(host: Host) -> str:
    return f"its driver has not answered within 2 s ({host.path}/{FILE}): it hangs or is very slow; `dmesg` says more"


def renders(host: Host, *env: str) -> list[str]:
    made = gpu_edits(Inquiry(env, {}, False, host.env))
    assert made is not None
    return [node.path for node in made.device_nodes if "render" in node.path]


def test_containers(host: Host) -> None:
    assert renders(host, "AMD_VISIBLE_DEVICES=0,7") == ["/dev/dri/renderD128", "/dev/dri/renderD135"]
    assert renders(host, "GPURUN_VISIBLE_DEVICES=0000:05:00.0/7") == ["/dev/dri/renderD135"]
    for words in ("AMD_VISIBLE_DEVICES=8", "AMD_VISIBLE_DEVICES=all", "GPURUN_VISIBLE_DEVICES=amd:8"):
        with pytest.raises(GpuError) as raised:
            renders(host, words)
        assert str(raised.value) == f"process.env AMD_VISIBLE_DEVICES: AMD GPU 8 ({SECOND}/0): {said(host)}"


def test_free_gpus(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process: the helper's reader opens no FIFO.
    monkeypatch.setattr("gpurun.gpu.leases.survey.limited_survey", lambda row, env, *_: survey_of_amd(env))

    def chosen(words: str) -> list[str]:
        request = read_free_request(words, "AMD_VISIBLE_DEVICES", "amd")
        requester = Requester("", "", source="AMD_VISIBLE_DEVICES")
        found = preview(request, host.env, LeasePolicy(), Store(str(tmp_path / "leases")), requester)
        return [unit.key for unit in found.chosen]

    assert chosen("free:8;profile=cpx_nps4") == [f"{amd.MI300X}/{number}" for number in range(8)]
    with pytest.raises(GpuError, match=r"9 partitions of profile cpx_nps4 wanted, 8 of .*: not well: its driver has not"):
        chosen("free:9;profile=cpx_nps4")


def test_lists_and_the_doctor(host: Host) -> None:
    units = survey(host.env, ask=False).units
    assert [unit.unwell for unit in units] == [""] * 8 + [said(host)] * 8
    assert [unit.key for unit in units] == [f"{pci}/{i}" for pci in (amd.MI300X, SECOND) for i in range(8)]
    failed = [one.text for one in examine(str(host.path)) if one.verdict == "fail" and one.subject == "AMD's GPUs"]
    assert failed == [f"{index} ({SECOND}/{index - 8}): {said(host)}" for index in range(8, 16)]


def test_cdi_files_and_clusters(host: Host) -> None:
    """A CDI file has the nodes, which do not depend on it: the engine's container starts when the driver is well again."""
    assert len(generate(str(host.path)).devices) == 17
    gpus = cluster_gpus(str(host.path)).gpus
    assert [gpu.why for gpu in gpus] == [""] * 8 + [said(host)] * 8
    assert [gpu.edits is None for gpu in gpus] == [False] * 8 + [True] * 8


def test_a_process_that_stays_knows_how_it_was_divided(host: Host) -> None:
    """So a node's resource does not change its name."""
    (host.path / FILE).unlink()
    host.write(FILE, "CPX")
    assert {gpu.profile for gpu in amd_gpus(str(host.path))} == {"cpx_nps4"}
    hang(host.path / FILE)
    assert {(gpu.profile, gpu.silent) for gpu in amd_gpus(str(host.path))} == {("cpx_nps4", ""), ("cpx_nps4", said(host))}
