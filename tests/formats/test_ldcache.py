"""The loader's cache: our composition against glibc's own reader and writer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.cdi.edits import CacheEntry
from gpurun.formats.ldcache import FLAGS_NATIVE, CacheError, compose, lookup, parse, sort_key

HOST = Path("/etc/ld.so.cache")
X86 = FLAGS_NATIVE["x86_64"]
needs_host_cache = pytest.mark.skipif(not HOST.exists(), reason="this host has no /etc/ld.so.cache")
needs_ldconfig = pytest.mark.skipif(shutil.which("ldconfig") is None, reason="no ldconfig on this host")


def entry(soname: str, directory: str = "/opt/gpu") -> CacheEntry:
    return CacheEntry(soname, f"{directory}/{soname}", X86)


def names(data: bytes) -> list[str]:
    return [e.soname for e in parse(data)]


def ldconfig_listing(cache: Path) -> str:
    return subprocess.run(["ldconfig", "-p", "-C", str(cache)], capture_output=True, text=True, check=True).stdout


@needs_host_cache
@needs_ldconfig
def test_parse_agrees_with_ldconfig() -> None:
    said = [line.split(" (")[0].strip() for line in ldconfig_listing(HOST).splitlines() if " => " in line]
    assert names(HOST.read_bytes()) == said


@needs_host_cache
def test_our_order_is_glibcs_order() -> None:
    keys = [sort_key(n.encode()) for n in names(HOST.read_bytes())]
    assert keys == sorted(keys, reverse=True)


@needs_host_cache
@needs_ldconfig
def test_composed_cache_is_read_by_ldconfig(tmp_path: Path) -> None:
    made = compose(HOST.read_bytes(), (entry("libcuda.so.1"), entry("libnvidia-ml.so.1"), entry("libc.so.6")))
    (tmp_path / "cache").write_bytes(made)
    listing = ldconfig_listing(tmp_path / "cache")
    assert "libcuda.so.1 (libc6,x86-64) => /opt/gpu/libcuda.so.1" in listing
    ours = [line for line in listing.splitlines() if line.strip().startswith("libc.so.6 ")]
    assert ours[0].endswith("=> /opt/gpu/libc.so.6") and len(ours) > 1


@needs_host_cache
def test_compose_keeps_every_entry_of_the_image() -> None:
    before = parse(HOST.read_bytes())
    after = parse(compose(HOST.read_bytes(), (entry("libzzz.so.1"), entry("liba.so.10"))))
    assert [e for e in after if not e.path.startswith("/opt/gpu/")] == list(before)
    keys = [sort_key(e.soname.encode()) for e in after]
    assert keys == sorted(keys, reverse=True)


def test_without_an_image_cache_ours_are_alone_and_sorted() -> None:
    made = compose(None, (entry("liba.so.9"), entry("liba.so.10"), entry("libb.so")))
    assert names(made) == ["libb.so", "liba.so.10", "liba.so.9"]


def test_ours_come_first_among_equals_in_the_order_given() -> None:
    image = compose(None, (entry("libcuda.so.1", "/image"),))
    made = compose(image, (entry("libcuda.so.1", "/first"), entry("libcuda.so.1", "/second")))
    assert [e.path for e in parse(made)] == ["/first/libcuda.so.1", "/second/libcuda.so.1", "/image/libcuda.so.1"]


def test_digits_count_as_numbers() -> None:
    assert sort_key(b"libx.so.10") > sort_key(b"libx.so.9")
    assert sort_key(b"libx1.so") > sort_key(b"libxa.so")
    assert sort_key(b"libx.so.1") > sort_key(b"libx.so")


def test_lookup_filters_by_flags_and_prefix() -> None:
    data = compose(None, (entry("libcuda.so.1"), CacheEntry("libcuda.so.1", "/lib32/libcuda.so.1", 3), entry("libc.so.6")))
    assert lookup(data, X86, (b"libcuda.so",)) == (("libcuda.so.1", "/opt/gpu/libcuda.so.1"),)
    assert lookup(data, 3, (b"libcuda.so", b"libc.so")) == (("libcuda.so.1", "/lib32/libcuda.so.1"),)


def with_hwcaps() -> bytes:
    """A cache as ldconfig writes it for a library with a glibc-hwcaps variant (one section, one name)."""
    from struct import pack

    strings = b"libz.so.1\0/l/glibc-hwcaps/x86-64-v3/libz.so.1\0/l/libz.so.1\0x86-64-v3\0"
    base = 48 + 2 * 24
    entries = pack("<iIIIQ", X86, base, base + 10, 0, 1 << 62) + pack("<iIIIQ", X86, base, base + 45, 0, 0)
    padding = -(base + len(strings)) % 4
    offset = base + len(strings) + padding
    tail = pack("<IIIIII", 0xEAA42174, 1, 1, 0, offset + 24, 4) + pack("<I", base + strings.index(b"x86-64-v3\0"))
    return (
        b"glibc-ld.so.cache1.1" + pack("<IIB3xI12x", 2, len(strings), 2, offset) + entries + strings + bytes(padding) + tail
    )


@needs_ldconfig
def test_hwcaps_extension_is_carried_over(tmp_path: Path) -> None:
    made = compose(with_hwcaps(), (entry("libcuda.so.1"),))
    assert [e.hwcap for e in parse(made)] == [1 << 62, 0, 0]
    (tmp_path / "cache").write_bytes(made)
    assert 'hwcap: "x86-64-v3"' in ldconfig_listing(tmp_path / "cache")


def test_old_format_in_front_is_skipped() -> None:
    from struct import pack

    new = compose(None, (entry("libcuda.so.1"),))
    old = b"ld.so-1.7.0\0" + pack("<I", 3) + bytes(36)
    assert names(old + bytes(-len(old) % 8) + new) == ["libcuda.so.1"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no cache at all",
        b"glibc-ld.so.cache1.1",
        b"ld.so-1.7.0\0",
        b"ld.so-1.7.0\0\xff\xff\xff\xff",
        b"glibc-ld.so.cache1.1" + b"\xff" * 28,
        b"glibc-ld.so.cache1.1" + b"\x01\0\0\0" + bytes(24) + b"\xff" * 24,
    ],
)
def test_what_is_no_cache_is_refused(data: bytes) -> None:
    with pytest.raises(CacheError):
        parse(data)


def test_every_cut_and_every_flipped_byte_is_survived() -> None:
    """A hostile cache is refused or read; nothing else may come out of it."""
    good = compose(with_hwcaps(), (entry("libcuda.so.1"),))
    for n in range(len(good)):
        for bad in (good[:n], good[:n] + bytes([good[n] ^ 0xFF]) + good[n + 1 :]):
            try:
                compose(bad, (entry("libx.so.1"),))
            except CacheError:
                pass


@pytest.mark.parametrize(("length", "good"), [(255, True), (256, False)])
def test_a_name_longer_than_any_files(length: int, good: bool) -> None:
    """Comparing one of megabytes takes hours when it is a number, and gigabytes when it is not: it is not compared."""
    for character in ("9", "x"):
        made = compose(None, (entry(character * length),))
        if good:
            assert names(compose(made, (entry("libx.so.1"),))) == sorted(
                [character * length, "libx.so.1"], key=sort, reverse=True
            )
        else:
            with pytest.raises(CacheError, match="a name of more than 255 bytes"):
                compose(made, (entry("libx.so.1"),))


def sort(name: str) -> list[int]:
    return sort_key(name.encode())


def test_many_entries_of_our_own_name() -> None:
    """Composed before is only what begins with ours; a path of megabytes, given for each entry, is not read for it."""
    ours = entry("libx.so.1")
    composed = compose(None, (ours,))
    assert compose(composed, (ours,)) == composed
    long = compose(None, (CacheEntry(ours.soname, "/" + "y" * (1 << 20), X86), entry("libz.so.1"), ours))
    with pytest.raises(CacheError, match="a name of more than 4096 bytes"):
        compose(long, (ours,))
