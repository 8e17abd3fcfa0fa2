"""Layers over each other, and archives that want out of their directory."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.images.layers import Limits, Unpacker, diff_id_of
from gpurun.images.source import read_image
from tests.images.making import Entry, layer, layout

LIMITS = Limits(bytes=1 << 20, files=1000)


def unpack(tmp_path: Path, *layers: bytes, limits: Limits = LIMITS) -> Path:
    root = tmp_path / "rootfs"
    root.mkdir(exist_ok=True)
    unpacker = Unpacker(str(root), limits)
    try:
        for number, data in enumerate(layers):
            (tmp_path / f"layer{number}").write_bytes(data)
            unpacker.add(str(tmp_path / f"layer{number}"))
    finally:
        unpacker.close()
    return root


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_what_a_layer_brings(tmp_path: Path) -> None:
    data = layer(
        ("usr/lib", "dir", None), ("lib", "link", "usr/lib"), ("lib/a.so", "file", "a"),
        ("usr/lib/b.so", "hard", "lib/a.so"),
        ("tmp", "dir", None), ("pipe", "fifo", None), ("su", "file", "x"), ("dev/null", "char", (1, 3)),
        tmp={"mode": 0o1777}, su={"mode": 0o4755, "uid": 0},
    )  # fmt: skip
    root = unpack(tmp_path, data)
    assert tree(root) == ["dev", "lib", "pipe", "su", "tmp", "usr", "usr/lib", "usr/lib/a.so", "usr/lib/b.so"]
    assert os.readlink(root / "lib") == "usr/lib"
    assert (root / "usr/lib/a.so").samefile(root / "usr/lib/b.so")
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777 and (root / "su").stat().st_mode & 0o7777 == 0o4755
    assert (root / "su").stat().st_mtime == (root / "tmp").stat().st_mtime == 1_000_000


def test_whiteouts(tmp_path: Path) -> None:
    lower = layer(("a/one", "file", "1"), ("a/two", "file", "2"), ("b/deep/file", "file", ""), ("c", "file", "c"))
    upper = layer(("a/.wh.one", "file", ""), ("b/.wh..wh..opq", "file", ""), ("b/new", "file", ""), (".wh.c", "file", ""))
    assert tree(unpack(tmp_path, lower, upper)) == ["a", "a/two", "b", "b/new"]


def test_a_whiteout_hides_nothing_of_its_own_layer(tmp_path: Path) -> None:
    """Layers list their entries in any order."""
    lower = layer(("b/old", "file", ""))
    upper = layer(("b/new", "file", "n"), ("b/.wh..wh..opq", "file", ""), ("b/.wh.new", "file", ""))
    assert tree(unpack(tmp_path, lower, upper)) == ["b", "b/new"]


def test_what_takes_the_place_of_something_else(tmp_path: Path) -> None:
    lower = layer(("a/file", "file", ""), ("b", "file", "old"), ("l", "link", "b"), ("d/x", "file", ""))
    upper = layer(("a", "file", "now a file"), ("b/in", "file", "now a directory"), ("l", "file", "own"), ("d", "link", "/"))
    with pytest.raises(GpurunError, match="its directory cannot be opened"):
        unpack(tmp_path, lower, upper)  # "b/in" without an entry for "b"
    upper = layer(("a", "file", "now"), ("b", "dir", None), ("b/in", "file", ""), ("l", "file", "own"), ("d", "link", "/"))
    root = unpack(tmp_path, upper)
    assert (root / "l").read_text() == "own" and not (root / "l").is_symlink()
    assert (root / "b/in").exists() and (root / "a").read_text() == "now" and os.readlink(root / "d") == "/"


OUTSIDE = "the host's"
HOSTILE: dict[str, tuple[list[Entry], str]] = {
    "dots": ([("../evil", "file", "x")], "leads out of the image"),
    "dots within": ([("a/../../evil", "file", "x")], "leads out of the image"),
    "hard link to dots": ([("a", "hard", "../../secret")], "leads out of the image"),
    "hard link to what is not there": ([("a", "hard", "/etc/hostname")], "is no file of the image"),
    "hard link to a directory": ([("d", "dir", None), ("a", "hard", "d")], "is no file of the image"),
    "device": ([("disk", "char", (8, 0))], "is a device node"),
    "whiteout of dots": ([(".wh...", "file", "")], "is no whiteout"),
    "whiteout of the directory": ([("a/.wh..", "file", "")], "is no whiteout"),
    "too large": ([("big", "file", b"x" * (1 << 21))], "the image is larger than 1 MiB"),
    "too many": ([(f"f{i}", "file", "") for i in range(1001)], "the image has more than 1000 files"),
    "a deep name": ([("d/" * 1200 + "f", "file", "")], "is more than 200 directories deep"),
    "a long name": ([("n" * 300, "file", "")], "is too long"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layers_are_refused(tmp_path: Path, name: str) -> None:
    entries, said = HOSTILE[name]
    (tmp_path / "secret").write_text(OUTSIDE)
    with pytest.raises(GpurunError, match=said):
        unpack(tmp_path, layer(*entries))
    assert (tmp_path / "secret").read_text() == OUTSIDE and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("target", ["{outside}", "../../../../../../../../{outside}", "/proc/self/root{outside}"])
def test_links_lead_nowhere_but_into_the_image(tmp_path: Path, target: str) -> None:
    """Files through a link to a directory of the host, absolute, by dots, or by a link of /proc."""
    outside = tmp_path / "outside"
    outside.mkdir()
    link = target.format(outside=outside)
    for entries in (
        [("l", "link", link), ("l/evil", "file", "x")],
        [("l", "link", f"{link}/evil"), ("l", "file", "x")],
        [("l", "link", link), ("l/.wh.precious", "file", "")],
        [("l", "link", f"{link}/precious"), ("h", "hard", "l")],
    ):
        (outside / "precious").write_text(OUTSIDE)
        try:
            unpack(tmp_path, layer(*entries))
        except GpurunError:
            pass
        assert os.listdir(outside) == ["precious"] and (outside / "precious").read_text() == OUTSIDE
        assert (outside / "precious").stat().st_nlink == 1
        for path in sorted((tmp_path / "rootfs").iterdir()):
            path.unlink() if path.is_symlink() or path.is_file() else os.system(f"rm -r '{path}'")


@pytest.mark.parametrize(
    "data", [b"", b"not a tar archive at all, but long enough" * 30, layer(("f", "file", "x" * 5000))[:2000]]
)
def test_damaged_layers(tmp_path: Path, data: bytes) -> None:
    try:
        assert tree(unpack(tmp_path, data)) == []
    except GpurunError as e:
        assert "layer0: " in str(e)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_layers_that_are_damaged_within_their_compression(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    whole = compress(layer(*[(f"f{n}", "file", str(n) * 500) for n in range(200)]))
    for at in range(len(whole) // 4, len(whole), len(whole) // 6):
        for damaged in (whole[:at], whole[:at] + b"\xff" * 60 + whole[at + 60 :]):
            for ask in (lambda: unpack(tmp_path, damaged), lambda: diff_id_of(str(tmp_path / "layer0"))):  # noqa: B023
                with pytest.raises(GpurunError, match="layer0: "):
                    ask()


def change_index(directory: Path, **fields: Any) -> None:
    index = json.loads((directory / "index.json").read_text())
    index["manifests"][0].update(fields)
    (directory / "index.json").write_text(json.dumps(index))


def test_content_that_is_not_what_it_says(tmp_path: Path) -> None:
    directory = layout(tmp_path / "image", layer(("f", "file", "x")), compress=False)
    digest = hashlib.sha256(layer(("f", "file", "x"))).hexdigest()
    blob = directory / "blobs/sha256" / digest
    blob.write_bytes(layer(("f", "file", "y")))
    with pytest.raises(GpurunError, match="the content has another digest"):
        read_image(directory, tmp_path, "", "amd64")
    blob.write_bytes(b"short")
    with pytest.raises(GpurunError, match="has 5 bytes, 10240 are said to be"):
        read_image(directory, tmp_path, "", "amd64")
    blob.unlink()
    (tmp_path / "secret").write_bytes(layer(("f", "file", "x")))
    blob.symlink_to(tmp_path / "secret")
    with pytest.raises(GpurunError, match="is no regular file of it"):
        read_image(directory, tmp_path, "", "amd64")


@pytest.mark.parametrize("digest", ["sha256:../../../../etc/passwd", "md5:0", "sha256:" + "A" * 64, None, 7])
def test_digests_are_no_paths(tmp_path: Path, digest: Any) -> None:
    directory = layout(tmp_path / "image", layer(("f", "file", "x")))
    change_index(directory, digest=digest)
    with pytest.raises(GpurunError, match="is no digest"):
        read_image(directory, tmp_path, "", "amd64")
