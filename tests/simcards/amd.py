"""AMD's hosts: the amdgpu driver, KFD's topology, partitions as platform devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.simcards import GIB, KFD_MAJOR, RENDER, Card, Host

KFD = "sys/devices/virtual/kfd/kfd/topology"
PLACE = f"/{KFD}"
AMD = 0x1002
#: (PCI address, render minor) of eight MI210, in the order of KFD's nodes 2 to 9: two hives of four.
MI210 = (
    ("0000:63:00.0", 128), ("0000:43:00.0", 129), ("0000:03:00.0", 130), ("0000:26:00.0", 131),
    ("0000:e3:00.0", 132), ("0000:c3:00.0", 133), ("0000:83:00.0", 134), ("0000:a3:00.0", 135),
)  # fmt: skip
MI300X = "0000:05:00.0"
PARTITIONS = 8
XGMI, PCIE = 11, 2
Links = Mapping[int, tuple[int, int]]  # node → (type, weight)


def unique_id(number: int) -> int:
    """The id that the GPU *number* has in its fuses."""
    return 0xEF2C1799A1F3E200 + number


def location(pci: str, partition: int = 0) -> int:
    """KFD's location_id of the PCI address *pci*: bus, device, and the partition in the place of the function."""
    _, bus, rest = pci.split(":")
    return int(bus, 16) << 8 | int(rest.partition(".")[0], 16) << 3 | partition


def files(number: int, model: str, memory: int, **more: str) -> dict[str, str]:
    """What the driver says of a GPU in its directory."""
    return {
        "unique_id": f"{unique_id(number):016x}",
        "product_name": model,
        "serial_number": f"6922300{number:05d}",
        "vbios_version": "113-M3000100-103",
        "gpu_busy_percent": "37",
        "mem_busy_percent": "12",
        "mem_info_vram_total": str(memory),
        "mem_info_vram_used": str(memory // 4),
        "pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *",
        "pp_dpm_mclk": "0: 400Mhz\n1: 1600Mhz *",
        "ras/umc_err_count": "ue: 0\nce: 3",
        **more,
    }


SENSORS = {
    "temp1_label": "edge",
    "temp1_input": "41000",
    "temp2_label": "junction",
    "temp2_input": "47000",
    "power1_average": "92000000",
    "power1_cap": "300000000",
}


def topology_node(host: Host, number: int, properties: Mapping[str, int], links: Links, memory: int = 0) -> None:
    """KFD's node *number*; links of weight 52 and more go by way of others, and KFD keeps those apart."""
    base = f"{KFD}/nodes/{number}"
    host.write(f"{base}/gpu_id", str(0 if properties["cpu_cores_count"] else 20000 + number))
    host.write(f"{base}/name", "" if properties["cpu_cores_count"] else "aldebaran")
    if memory:
        host.write(f"{base}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 8192")
        host.write(f"{base}/caches/0/properties", "processor_id_low 2147487744\nlevel 1\nsize 16")
    counts = {"io_links": 0, "p2p_links": 0}
    for to, (kind, weight) in links.items():
        name = "p2p_links" if kind == PCIE and weight > 50 else "io_links"
        text = f"type {kind}\nversion_major 0\nnode_from {number}\nnode_to {to}\nweight {weight}\nmax_bandwidth 50000"
        host.write(f"{base}/{name}/{counts[name]}/properties", text)
        counts[name] += 1
    facts = {**properties, "mem_banks_count": int(memory > 0), "caches_count": int(memory > 0)}
    facts |= {f"{name}_count": count for name, count in counts.items()}
    host.write(f"{base}/properties", "\n".join([f"{name} {value}" for name, value in facts.items()]))


def cpu(host: Host, number: int) -> None:
    """KFD's node of a CPU socket."""
    names = ("simd_count", "gfx_target_version", "vendor_id", "device_id", "location_id", "domain", "drm_render_minor")
    topology_node(host, number, {"cpu_cores_count": 64, **dict.fromkeys(names, 0)}, {1 - number: (1, 32)})


def gpu(
    host: Host, number: int, pci: str, render: int, device: int, links: Links, memory: int, **more: int
) -> None:  # fmt: skip
    """KFD's node of a GPU, or of a partition of one."""
    facts = {
        "cpu_cores_count": 0, "simd_count": 416, "simd_per_cu": 4, "gfx_target_version": 90010, "vendor_id": AMD,
        "device_id": device, "location_id": location(pci), "domain": int(pci.partition(":")[0], 16),
        "drm_render_minor": render, "hive_id": 0, "num_xcc": 1, "unique_id": 0,
    }  # fmt: skip
    topology_node(host, number, {**facts, **more}, links, memory)


def _begin(path: Path) -> Host:
    host = Host(path)
    host.majors(drm=226, kfd=KFD_MAJOR)
    _kfd(host)
    return host


def _kfd(host: Host) -> None:
    host.write(f"{KFD}/generation_id", "2")
    host.write(f"{KFD}/system_properties", "platform_oem 35498446626881\nplatform_id 35322352389441\nplatform_rev 2")
    host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    host.write("sys/devices/virtual/kfd/kfd/dev", f"{KFD_MAJOR}:0")
    host.node("kfd", KFD_MAJOR, 0, RENDER)
    host.write("sys/module/amdgpu/version", "6.12.12")
    host.write("sys/module/amdgpu/srcversion", "D3F6F02F5C3D1E0A3F2C1B4")
    cpu(host, 0)
    cpu(host, 1)


def mi210(path: Path, first_card: int = 1, count: int = 8, later: int = 0) -> Host:
    """*count* MI210, four of which are a hive each; card *first_card* onwards, in KFD's order; *later* as below."""
    host = _begin(path)
    add_mi210(host, first_card, count, later)
    return host


def add_mi210(host: Host, first_card: int, count: int = 8, later: int = 0) -> None:
    """The cards of :func:`mi210`; *later* is added to the render minors, of which others have had the first."""
    for i, (pci, first) in enumerate(MI210[:count]):
        render = first + later
        socket = i // 4
        links: dict[int, tuple[int, int]] = {socket: (PCIE, 20), 1 - socket: (PCIE, 52)}
        links |= {2 + j: ((XGMI, 15) if j // 4 == socket else (PCIE, 72)) for j in range(count) if j != i}
        memory = 64 * GIB
        gpu(host, 2 + i, pci, render, 0x740F, links, memory, hive_id=0xAF00 + socket, unique_id=unique_id(i))
        root = f"pci0000:{0x20 * i:02x}/0000:{0x20 * i:02x}:01.1"
        card = Card(pci, "amdgpu", AMD, 0x740F, first_card + i, render, socket, root)
        host.add(
            Card(**{**vars(card), "files": files(i, "AMD Instinct MI210", memory), "hwmon": SENSORS})  # type: ignore[arg-type]
        )


def mi300x(path: Path, gpus: int = 1, later: int = 0) -> Host:
    """*gpus* MI300X in CPX and NPS4: eight partitions of each, of which the first has the PCI device's own nodes.

    *later* is added to all minors.
    """
    host = _begin(path)
    memory, count = 48 * GIB, gpus * PARTITIONS
    first_card, first_render = 1 + later, 128 + later
    for i in range(count):
        number, partition = divmod(i, PARTITIONS)
        pci = f"0000:{5 + 0x20 * number:02x}:00.0"
        links: dict[int, tuple[int, int]] = {number % 2: (PCIE, 20)}
        links |= {2 + j: (XGMI, 13 if j // PARTITIONS == number else 41) for j in range(count) if j != i}
        facts = {"simd_count": 152, "gfx_target_version": 90402, "hive_id": 0xD2C9, "unique_id": unique_id(number)}
        facts["location_id"] = location(pci, partition)
        gpu(host, 2 + i, pci, first_render + i, 0x74A1, links, memory, **facts)
        if partition:
            xcp = number * (PARTITIONS - 1) + partition - 1
            directory = f"sys/devices/platform/amdgpu_xcp_{xcp}"
            host.drm(directory, f"platform-amdgpu_xcp_{xcp}", first_card + i, first_render + i)
            host.write(f"{directory}/modalias", "platform:amdgpu_xcp")
            continue
        profile = {"current_compute_partition": "CPX", "current_memory_partition": "NPS4"}
        profile |= {"available_compute_partition": "SPX, DPX, QPX, CPX", "available_memory_partition": "NPS1, NPS4"}
        told = files(number, "AMD Instinct MI300X OAM", 192 * GIB, **profile)
        root = f"pci0000:{0x20 * number:02x}/0000:{0x20 * number:02x}:01.1"
        host.add(Card(pci, "amdgpu", AMD, 0x74A1, first_card + i, first_render + i, number % 2, root, told, SENSORS))
    spare = f"sys/devices/platform/amdgpu_xcp_{gpus * (PARTITIONS - 1)}"  # made by the driver, and not in use
    host.drm(spare, f"platform-{spare.rpartition('/')[2]}", first_card + count, first_render + count)
    return host


def beside_nvidia(path: Path, count: int = 2, later: int = 8) -> Host:
    """*count* MI210 in the host of a simulated NVIDIA driver, which is at *path* already; *later* as above."""
    host = Host(path)
    host.majors(kfd=KFD_MAJOR)
    _kfd(host)
    add_mi210(host, later, count, later)
    return host
