"""``free:2;memory>=20GiB;product=A100*;nvlink``: what it means, and what is wrong with what it does not."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.request.environment import read_request
from gpurun.gpu.request.free import FreeRequest, read_free_request
from gpurun.record import replace

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "free_request"),
    [
        ("free", FreeRequest("free")),
        ("free:1", FreeRequest("free:1")),
        ("free:8", FreeRequest("free:8", 8)),
        ("free;nvlink", FreeRequest("free;nvlink", nvlink=True)),
        (
            "free:2;memory>=20GiB;product=A100*;nvlink",
            FreeRequest("free:2;memory>=20GiB;product=A100*;nvlink", 2, ((">=", 20 * GIB),), (("a100*", True),), True),
        ),
        (
            "free: 2 ; memory < 24 GB ; product != *T4",
            FreeRequest("free: 2 ; memory < 24 GB ; product != *T4", 2, (("<", 24 * 10**9),), (("*t4", False),)),
        ),
        ("free:1;profile=1g.10gb", FreeRequest("free:1;profile=1g.10gb", profile="1g.10gb")),
        ("free:3;", FreeRequest("free:3;", 3)),
        ("free;memory=42", FreeRequest("free;memory=42", memory=(("=", 42),))),
    ],
)
def test_what_it_means(text: str, free_request: FreeRequest) -> None:
    found = read_free_request(text, "NVIDIA_VISIBLE_DEVICES", "nvidia")
    assert (found.source, found.vendor) == ("NVIDIA_VISIBLE_DEVICES", "nvidia")
    assert replace(found, source="", vendor="") == free_request
    assert read_free_request(f"{text};vendor=AMD", "", "nvidia").vendor == "amd"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("free:0", "a number from 1 to 128"),
        ("free:-1", "a number from 1 to 128"),
        ("free:129", "a number from 1 to 128"),
        ("free:", "a number from 1 to 128"),
        ("free:two", "a number from 1 to 128"),
        ("free:²", "a number from 1 to 128"),
        ("free;memory>=lots", "does not compare with a size"),
        ("free;memory", "does not compare with a size"),
        ("free;memory>=20XiB", "does not compare with a size"),
        ("free;product=", "does not name a product"),
        ("free;product", "does not name a product"),
        ("free;profile=", "does not name a profile"),
        ("free;colour=red", "is not a condition; known are memory>=20GiB"),
        ("free;nvlink;profile=1g.10gb", "cannot be asked of MIG devices"),
        ("free;\x1b[2J", r"\x1b[2J"),
    ],
)
def test_what_it_cannot_mean(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_free_request(text, "NVIDIA_VISIBLE_DEVICES")
    assert said in str(error.value) and str(error.value).startswith("process.env NVIDIA_VISIBLE_DEVICES: ")


@pytest.mark.parametrize(
    ("pattern", "model", "fits"),
    [
        ("A100*", "NVIDIA A100-SXM4-40GB", True),
        ("a100*", "NVIDIA A100-SXM4-40GB", True),
        ("NVIDIA A100*", "NVIDIA A100-SXM4-40GB", True),
        ("A100", "NVIDIA A100-SXM4-40GB", False),
        ("*T4", "Tesla T4", True),
        ("A100*", "NVIDIA GeForce RTX 4090", False),
        ("Instinct*", "AMD Instinct MI210", True),
        ("AMD Instinct*", "AMD Instinct MI210", True),
        ("arc*", "Intel Arc A770", True),
        ("Arc*", "NVIDIA Intel Arc", False),
    ],
)
def test_products(pattern: str, model: str, fits: bool) -> None:
    assert read_free_request(f"free;product={pattern}", "").product_fits(model) is fits
    assert read_free_request(f"free;product!={pattern}", "").product_fits(model) is not fits


def test_sizes() -> None:
    free_request = read_free_request("free;memory>=20GiB;memory<=40GiB", "")
    assert [free_request.memory_fits(n * GIB) for n in (19, 20, 40, 41)] == [False, True, True, False]


@pytest.mark.parametrize("value", ["free:1,0", "0,free", "free:1,free:2", "free:1,nvidia.com/gpu=0"])
def test_free_stands_alone(value: str) -> None:
    with pytest.raises(ConfigError, match="free:N must stand alone"):
        read_request((f"NVIDIA_VISIBLE_DEVICES={value}",), {}, False)


def test_a_pattern_with_a_slash_is_no_cdi_name() -> None:
    request = read_request(("NVIDIA_VISIBLE_DEVICES=free:1;product=a/b=c",), {}, False)
    assert request is not None and request.devices == ("free:1;product=a/b=c",) and not request.qualified
