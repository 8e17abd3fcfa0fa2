"""What fdinfo says of processes that use a GPU."""

from __future__ import annotations

import os
import posix
from pathlib import Path

import pytest

from gpurun.gpu.host import fdinfo
from gpurun.gpu.host.fdinfo import DrmClient, clients_of, engine_loads, open_nodes, read_client
from tests.needs_nodes import require_nodes

XE = """pos:\t0
flags:\t0100002
drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:04:00.0
drm-total-system:\t0
drm-total-vram0:\t8192 KiB
drm-resident-vram0:\t4096 KiB
drm-total-vram1:\t2 MiB
drm-cycles-ccs:\t100
drm-total-cycles-ccs:\t400
drm-engine-capacity-ccs:\t4
"""
AMD = """drm-driver:\tamdgpu
drm-pdev:\t0000:03:00.0
drm-client-id:\t5
drm-memory-vram:\t1024 KiB
drm-memory-gtt:\t64 KiB
drm-engine-gfx:\t123456 ns
"""


def test_clients() -> None:
    assert read_client(9, XE) == DrmClient(
        9, "0000:04:00.0", 7, (4096 + 2048) << 10, (), (("ccs", 100, 400),), -1, (("ccs", 4),)
    )
    assert read_client(9, AMD) == DrmClient(9, "0000:03:00.0", 5, 1 << 20, (("gfx", 123456),))


@pytest.mark.parametrize(
    "text", ["", "pos:\t0\n", XE.replace("0000:04:00.0", "../../etc"), XE.replace("\t7", "\t-7"), "\0" * 9999]
)
def test_what_is_no_client(text: str) -> None:
    assert read_client(9, text) is None


def test_nonsense_in_a_client_counts_nothing() -> None:
    text = AMD.replace("1024 KiB", "99999999999999999999999 KiB").replace("123456 ns", "1e9 ns")
    assert read_client(9, text) == DrmClient(9, "0000:03:00.0", 5)


def test_a_process_is_asked_for_its_drm_descriptors_alone(tmp_path: Path) -> None:
    require_nodes()
    fd, fdinfo = tmp_path / "77/fd", tmp_path / "77/fdinfo"
    fd.mkdir(parents=True)
    fdinfo.mkdir()
    node = tmp_path / "renderD129"
    os.mknod(node, 0o020600, os.makedev(226, 129))
    for name, target in (("3", str(node)), ("4", str(node)), ("5", "/dev/null"), ("6", "/nowhere")):
        (fd / name).symlink_to(target)
    (fdinfo / "3").write_text(XE)
    (fdinfo / "4").write_text(XE)  # dup(2) of it: one client
    (fdinfo / "5").write_text(AMD)
    assert [client.pci for client in clients_of(77, str(tmp_path))] == ["0000:04:00.0"]
    assert clients_of(78, str(tmp_path)) == ()


def test_what_comes_first_in_a_text_counts() -> None:
    """A client may give itself a name; lines behind it are not taken for the kernel's."""
    text = XE + "drm-client-name:\tx\ndrm-pdev:\t0000:99:00.0\ndrm-resident-vram0:\t9999999 MiB\n"
    assert read_client(9, text) == read_client(9, XE)


def test_huge_numbers_stay_bounded() -> None:
    many = "".join([f"drm-resident-vram{number}:\t99999999999 KiB\n" for number in range(99)])
    many += "".join([f"drm-engine-e{number}:\t1 ns\n" for number in range(999)])
    found = read_client(9, AMD + many)
    assert found is not None and found.memory <= 1 << 50 and len(found.busy) == 64


def test_loads_between_two_looks() -> None:
    def client(number: int, cycles: int, passed: int, busy: int = 0, engines: int = 1) -> DrmClient:
        capacity = (("ccs", engines),) if engines > 1 else ()
        return DrmClient(1, "0000:04:00.0", number, 0, (("render", busy),), (("ccs", cycles, passed),), -1, capacity)

    assert engine_loads([client(1, 0, 0)], [client(1, 50, 100, 500_000_000)], 1.0) == {"ccs": 0.5, "render": 0.5}
    assert engine_loads([client(1, 0, 0)], [client(1, 200, 100, engines=4)], 1.0)["ccs"] == 0.5
    two = [client(1, 0, 0), client(2, 0, 0)]
    assert engine_loads(two, [client(1, 80, 100), client(2, 80, 100)], 1.0)["ccs"] == 1.0
    assert engine_loads([], [client(1, 80, 100)], 1.0) == {}  # what it did before is not known
    assert set(engine_loads([client(1, 80, 100)], [client(1, 0, 0)], 0.0).values()) == {0.0}


def test_only_the_root_of_the_host_sees_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "geteuid", lambda: 0)
    assert open_nodes(str(tmp_path)).whole
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    assert not open_nodes(str(tmp_path)).whole
    monkeypatch.setattr(posix, "geteuid", lambda: 0)
    monkeypatch.setattr(fdinfo, "_FIRST_PID_NAMESPACE", 1)
    assert not open_nodes("/proc", ()).whole
