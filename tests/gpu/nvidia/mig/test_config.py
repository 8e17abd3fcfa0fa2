"""The configuration file of mig-parted: what it may say, and which file is obeyed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, GpurunError
from gpurun.gpu.nvidia.mig.config import PciId, load, read_configs, select
from gpurun.gpu.nvidia.mig.profile import MigProfile, parse_profile, profile_of
from tests.gpu.nvidia.mig.hosts import entries

GOOD = "version: v1\nmig-configs:\n  off:\n  - {devices: all, mig-enabled: false}\n"


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("1g.5gb", MigProfile(1, 1, 5)),
        ("7g.40gb", MigProfile(7, 7, 40)),
        ("1c.3g.20gb", MigProfile(1, 3, 20)),
        ("3c.3g.20gb", MigProfile(3, 3, 20)),
        ("1g.5gb+me", MigProfile(1, 1, 5, ("me",))),
        ("1g.24gb+me.all", MigProfile(1, 1, 24, ("me.all",))),
        ("2g.10gb+gfx,me", MigProfile(2, 2, 10, ("gfx", "me"))),
        ("2g.10gb-me", MigProfile(2, 2, 10, (), ("me",))),
    ],
)
def test_a_profile(text: str, profile: MigProfile) -> None:
    assert parse_profile(text, "") == profile
    assert parse_profile(profile.name, "") == profile
    assert profile.name == text.replace("3c.3g", "3g")


@pytest.mark.parametrize(
    "text",
    [
        "", "bogus", "1g", "5gb", "1g.5", "g.5gb", "1g.5gb.1", "1c.1c.1g.5gb", "-1g.5gb", " 1g.5gb", "1g. 5gb", "1G.5gb",
        "1g.5gb+", "1g.5gb+me,me", "1g.5gb+me,", "1g.5gb+ me", "1g.5gb+1me", "1g.5gb+.me", "1g.5gb+me.", "1g.5gb+m-e",
        "1g.5gb+me-gfx",
        "1g.5gb-me+gfx", "2c.1g.5gb", "1g.5gb+m\u00e9", "\u0661g.5gb", "99999999999999999999g.5gb",
    ],
)  # fmt: skip
def test_no_profile(text: str) -> None:
    with pytest.raises(ConfigError, match="place: "):
        parse_profile(text, "place")


@pytest.mark.parametrize(
    ("number", "compute", "slices", "mib", "gib", "name"),
    [
        (0, 1, 1, 4864, 39.6, "1g.5gb"), (9, 1, 1, 9856, 39.6, "1g.10gb"), (7, 1, 1, 4864, 39.6, "1g.5gb+me"),
        (1, 2, 2, 9856, 39.6, "2g.10gb"), (2, 3, 3, 19968, 39.6, "3g.20gb"), (2, 2, 3, 19968, 39.6, "2c.3g.20gb"),
        (4, 7, 7, 40192, 39.6, "7g.40gb"), (0, 1, 1, 9856, 79.6, "1g.10gb"), (2, 3, 3, 40448, 79.6, "3g.40gb"),
        (0, 1, 1, 5952, 23.8, "1g.6gb"), (1, 2, 2, 12032, 23.8, "2g.12gb"), (13, 1, 1, 9856, 79.6, "1g.10gb-me"),
        (15, 1, 1, 24192, 95.6, "1g.24gb+me.all"), (0, 1, 1, 16384, 139.8, "1g.18gb"),
        (10, 1, 1, 24192, 95.6, "1g.24gb+gfx"),
    ],
)  # fmt: skip
def test_names_are_nvidias(number: int, compute: int, slices: int, mib: int, gib: float, name: str) -> None:
    """Memory of the GPUs as their drivers tell it; the names are those of NVIDIA's tables."""
    assert profile_of(number, compute, slices, mib, int(gib * (1 << 30))).name == name


def test_an_entry() -> None:
    (one, two) = entries(
        '{device-filter: ["0x20B010DE", "0x20B210DE:0x144E10DE"], devices: [3, 1, 1], mig-enabled: true, '
        "mig-devices: {1g.5gb: 2, 1c.1g.5gb: 1, 2g.10gb: 0}}",
        "{devices: all, mig-enabled: false, mig-devices: {}}",
    )
    assert one.devices == (1, 3) and one.filters == (PciId(0x20B010DE), PciId(0x20B210DE, 0x144E10DE))
    assert one.profiles == ((MigProfile(1, 1, 5), 3),) and one.where == "file: mig-configs.it[0]"
    assert two.devices is None and two.filters == two.profiles == () and not two.enabled
    assert entries("{device-filter: 0x20B010DE, devices: all, mig-enabled: false}")[0].filters == (PciId(0x20B010DE),)


def test_which_gpus_are_meant() -> None:
    """The table of mig-parted's TestDeviceIDMatches, and indices."""
    a16, sibling = (0x25B610DE, 0x14A910DE), (0x25B610DE, 0x157E10DE)
    for text, ids, meant in (
        ("0x25B610DE", a16, True),
        ("0x25B610DE:0x14A910DE", a16, True),
        ("0x25B610DE:0x14A910DE", sibling, False),
        ("0x25B610DE:0x14A910DE", (0x25B610DE, 0), False),
        ("0x25B610DE:0x00000000", (0x25B610DE, 0), True),
        ("0x1E3010DE", a16, False),
    ):
        (entry,) = entries(f'{{device-filter: "{text}", devices: all, mig-enabled: false}}')
        assert entry.means(5, *ids) is meant, text
    (entry,) = entries("{devices: [1], mig-enabled: false}")
    assert entry.means(1, *a16) and not entry.means(0, *a16)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("", ""), ("[]", ""), ("version: v1", "mig-configs"), ("version: v2", "version"), ("mig-configs: {}", "version"),
        ("version: v1\nmig-configs: {}", "mig-configs"), (GOOD + "bogus: field\n", "bogus"),
        ("version: v1\nmig-configs: {off: []}", "mig-configs.off"),
        ("version: v1\nmig-configs: {off: {}}", "mig-configs.off"),
        ("version: v1\nmig-configs: []", "mig-configs"),
    ],
)  # fmt: skip
def test_a_bad_file(document: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_configs(document.encode(), "f.yaml")
    assert raised.value.where == f"f.yaml: {place}" if place else raised.value.where.startswith("f.yaml")


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("{mig-enabled: true, mig-devices: {1g.5gb: 2}}", ".devices"),
        ("{devices: all, mig-devices: {1g.5gb: 2}}", ".mig-enabled"),
        ("{devices: all, mig-enabled: true}", ".mig-devices"),
        ("{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}", ".mig-devices"),
        ("{devices: all, mig-enabled: true, mig-devices: {bogus: 2}}", ".mig-devices.bogus"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}", ".mig-devices.1g.5gb"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: true}}", ".mig-devices.1g.5gb"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1.5}}", ".mig-devices.1g.5gb"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}", ".mig-devices"),
        ("{devices: all, mig-enabled: true, mig-devices: []}", ".mig-devices"),
        ("{bogus: field, devices: all, mig-enabled: false}", ".bogus"),
        ("{devices: bogus, mig-enabled: false}", ".devices"),
        ("{devices: {}, mig-enabled: false}", ".devices"),
        ("{devices: [a], mig-enabled: false}", ".devices"),
        ("{devices: [-1], mig-enabled: false}", ".devices"),
        ("{devices: [true], mig-enabled: false}", ".devices"),
        ("{devices: all, mig-enabled: 'yes'}", ".mig-enabled"),
        ("{device-filter: MODEL, devices: all, mig-enabled: false}", ".device-filter"),
        ("{device-filter: '0x25B610DE:not', devices: all, mig-enabled: false}", ".device-filter"),
        ("{device-filter: '0x1:0x2:0x3', devices: all, mig-enabled: false}", ".device-filter"),
        ("{device-filter: [[]], devices: all, mig-enabled: false}", ".device-filter"),
        ("{device-filter: '0x123456789', devices: all, mig-enabled: false}", ".device-filter"),
        ("[]", ""),
    ],
)
def test_a_bad_entry(entry: str, place: str) -> None:
    """mig-parted's TestMigConfigSpec, and more; it takes a device filter that is no id, which then means no GPU."""
    with pytest.raises(ConfigError) as raised:
        entries("{devices: all, mig-enabled: false}", entry)
    assert raised.value.where == f"file: mig-configs.it[1]{place}"


def test_selecting() -> None:
    one = read_configs(GOOD.encode(), "f")
    assert select(one, "", "f")[0] == "off" and select(one, "off", "f")[1] == one["off"]
    two = one | {"on": one["off"]}
    with pytest.raises(ConfigError, match=r"f: has several configurations, say which \(-c\): off, on"):
        select(two, "", "f")
    with pytest.raises(ConfigError, match=r'f: has no configuration "o\\x1bn", it has: off, on'):
        select(two, "o\x1bn", "f")


def test_which_file_is_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(GOOD)
    file.chmod(0o644)
    (tmp_path / "link").symlink_to(file)  # as a ConfigMap's files are
    assert list(load(str(tmp_path / "link"))) == ["off"]
    for path, text in ((tmp_path / "none", "no such file"), (tmp_path, "is not a regular file")):
        with pytest.raises(GpurunError, match=text):
            load(str(path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(GpurunError, match="is not a regular file"):
        load(str(tmp_path / "fifo"))
    file.write_text("#" * (1 << 20) + GOOD)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(str(file))


def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    file = tmp_path / "config.yaml"
    file.write_text(GOOD)
    for uid, gid, mode, obeyed in (
        (0, 0, 0o644, True), (0, 0, 0o664, True), (1000, 0, 0o644, False), (0, 1000, 0o664, False), (0, 0, 0o646, False),
    ):  # fmt: skip
        os.chown(file, uid, gid)
        file.chmod(mode)
        if obeyed:
            assert list(load(str(file))) == ["off"]
        else:
            with pytest.raises(GpurunError, match="can be written by a user other than root and you"):
                load(str(file))
