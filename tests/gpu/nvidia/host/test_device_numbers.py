"""Numbers of device nodes, and the names that they always have."""

from __future__ import annotations

import pytest

from gpurun.gpu.nvidia.host.device_numbers import device_name


@pytest.mark.parametrize(
    ("kind", "major", "minor", "name"),
    [
        ("c", 195, 0, "/dev/nvidia0"),
        ("u", 195, 253, "/dev/nvidia253"),
        ("c", 195, 254, "/dev/nvidia-modeset"),
        ("c", 195, 255, "/dev/nvidiactl"),
        ("c", 195, None, "/dev/nvidia*"),
        ("b", 195, 0, ""),
        ("c", 1, 3, "/dev/null"),
        ("c", 10, 200, "/dev/net/tun"),
        ("c", 136, None, "/dev/pts/*"),
        ("c", 143, 2, "/dev/pts/2"),
        ("c", 510, 0, ""),
        ("c", 1, None, ""),
    ],
)
def test_names(kind: str, major: int, minor: int | None, name: str) -> None:
    assert device_name(kind, major, minor) == name
