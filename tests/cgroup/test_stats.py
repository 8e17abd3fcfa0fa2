"""A container's numbers from the texts of its cgroup's files, in runc's shape."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.cgroup.stats import UNLIMITED, psi, read_stats, stats

PRESSURE = "some avg10=1.50 avg60=0.00 avg300=0.25 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
FILES = {
    "cpu.stat": "usage_usec 3000\nuser_usec 2000\nsystem_usec 1000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 44\n",
    "cpu.pressure": PRESSURE,
    "cpuset.cpus": "0-2,5\n",
    "cpuset.cpus.partition": "member\n",
    "cpuset.mems": "\n",
    "memory.current": "1000\n",
    "memory.max": "2000\n",
    "memory.peak": "1500\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n",
    "memory.stat": "anon 10\nfile 20\nkernel 30\nsock 40\n",
    "memory.swap.current": "5\n",
    "memory.swap.max": "50\n",
    "memory.swap.events": "high 0\nmax 6\nfail 0\n",
    "pids.current": "9\n",
    "pids.max": "max\n",
    "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:16 rbytes=5 wbytes=6 rios=7 wios=8\n(unknown)\n",
    "hugetlb.2MB.current": "2097152\n",
    "hugetlb.2MB.max": "max\n",
    "hugetlb.2MB.events": "max 3\n",
}


def of(files: dict[str, str]) -> dict[str, Any]:
    return stats(lambda name: files.get(name, ""), ("2MB",))


def test_cpu() -> None:
    cpu = of(FILES)["cpu"]
    assert cpu["usage"]["total"] == 3_000_000
    assert (cpu["usage"]["kernel"], cpu["usage"]["user"]) == (1_000_000, 2_000_000)
    assert cpu["throttling"] == {"periods": 7, "throttledPeriods": 3, "throttledTime": 44_000}
    assert cpu["psi"]["some"] == {"avg10": 1.5, "avg60": 0.0, "avg300": 0.25, "total": 12345}


def test_cpuset() -> None:
    found = of(FILES)["cpuset"]
    assert (found["cpus"], found["mems"], found["cpu_exclusive"]) == ([0, 1, 2, 5], [], 0)


def test_memory() -> None:
    memory = of(FILES)["memory"]
    assert memory["cache"] == 20
    assert memory["usage"] == {"limit": 2000, "usage": 1000, "max": 1500, "failcnt": 4}
    assert memory["swap"] == {"limit": 2050, "usage": 1005, "max": 0, "failcnt": 6}, "memory and swap together"
    assert memory["kernel"]["usage"] == 30
    assert memory["raw"] == {"anon": 10, "file": 20, "kernel": 30, "sock": 40}
    assert "psi" not in memory


def test_no_limits() -> None:
    memory = of({**FILES, "memory.max": "max\n"})["memory"]
    assert memory["usage"]["limit"] == memory["swap"]["limit"] == UNLIMITED == 18446744073709551615


@pytest.mark.parametrize(("text", "found"), [("max\n", {"current": 9}), ("20\n", {"current": 9, "limit": 20})])
def test_pids(text: str, found: dict[str, int]) -> None:
    assert of({**FILES, "pids.max": text})["pids"] == found


def test_blkio() -> None:
    blkio = of(FILES)["blkio"]
    assert blkio["ioServiceBytesRecursive"] == [
        {"major": 8, "minor": 0, "op": "Read", "value": 1},
        {"major": 8, "minor": 0, "op": "Write", "value": 2},
        {"major": 8, "minor": 16, "op": "Read", "value": 5},
        {"major": 8, "minor": 16, "op": "Write", "value": 6},
    ]
    assert [entry["value"] for entry in blkio["ioServicedRecursive"]] == [3, 4, 7, 8]
    assert blkio["sectorsRecursive"] == []


def test_hugetlb() -> None:
    assert of(FILES)["hugetlb"] == {"2MB": {"usage": 2097152, "max": 0, "failcnt": 3}}


def test_nothing_there() -> None:
    found = of({})
    assert found["memory"]["usage"]["usage"] == 0
    assert found["network_interfaces"] is None
    assert found["intel_rdt"] == {}


def test_psi_of_one_line() -> None:
    assert psi("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n").keys() == {"some"}
    assert psi("") == {}


def test_cgroup_that_is_gone() -> None:
    with pytest.raises(FileNotFoundError):
        read_stats("/sys/fs/cgroup/no-such-cgroup")


def test_memory_of_gpus() -> None:
    """By region of the kernel's; runc's document has no such member, and without the controller neither has ours."""
    files = {
        "dmem.current": "drm/0000:03:00.0/vram 4096\ndrm/0000:04:00.0/vram0 0\n",
        "dmem.max": "drm/0000:03:00.0/vram 8192\ndrm/0000:04:00.0/vram0 max\n",
    }
    assert of(FILES | files)["dmem"] == {"drm/0000:03:00.0/vram": {"usage": 4096, "limit": 8192}}
    assert "dmem" not in of(FILES)
