"""The options of overlays with many layers: each layer by itself, or what mount(2) takes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.ns import long_options
from gpurun.ns.long_options import filesystem_with_long_options, with_single_layers, within_a_page
from gpurun.ns.options import split_escaped


@pytest.mark.parametrize(
    ("lowerdir", "layers"),
    [
        ("/a", ["lowerdir+ /a"]),
        ("/a:/b:/c", ["lowerdir+ /a", "lowerdir+ /b", "lowerdir+ /c"]),
        (r"/a\:b\\c:/d\,e", [r"lowerdir+ /a:b\c", "lowerdir+ /d,e"]),
        ("/a:/b::/c::/d", ["lowerdir+ /a", "lowerdir+ /b", "datadir+ /c", "datadir+ /d"]),
        ("/a:", None),
        (":/a", None),
        ("/a:::/b", None),
        ("", None),
    ],
)
def test_each_layer_by_itself(lowerdir: str, layers: list[str] | None) -> None:
    found = with_single_layers((("upperdir", "/u"), ("lowerdir", lowerdir), ("volatile", None)))
    assert found == (
        None
        if layers is None
        else (("upperdir", "/u"), *[(word.split(" ")[0], word.split(" ")[1]) for word in layers], ("volatile", None))
    )


def test_parts_keep_what_is_escaped() -> None:
    assert split_escaped(r"a\,b,c\\,d\\\,e,", ",") == [r"a\,b", r"c\\", r"d\\\,e", ""]


def words(*layers: str, **more: str) -> list[tuple[str, str]]:
    return [("lowerdir", f"lowerdir={':'.join(layers)}"), *[(key, f"{key}={value}") for key, value in more.items()]]


def test_what_has_room_stays_as_it_is() -> None:
    assert within_a_page("overlay", words("/x/a", "/x/b", upperdir="/u")) == ("", "lowerdir=/x/a:/x/b,upperdir=/u")


def test_what_has_no_room_is_relative_to_what_all_have_in_common() -> None:
    parent = r"/x\:" + "y" * 200
    layers = [f"{parent}/l{number}" for number in range(50)]
    directory, data = within_a_page("overlay", words(*layers, upperdir="/u"))
    assert directory == parent.replace("\\", "")
    assert data == "lowerdir=" + ":".join(f"l{number}" for number in range(50)) + ",upperdir=/u"


@pytest.mark.parametrize(
    ("fstype", "layers"),
    [
        ("overlay", [f"/{number}/{'y' * 200}" for number in range(50)]),
        ("other", [f"/x/{'y' * 200}/{number}" for number in range(50)]),
    ],
)
def test_what_has_no_room_at_all_is_told(fstype: str, layers: list[str]) -> None:
    size = len("lowerdir=" + ":".join(layers))
    with pytest.raises(
        GpurunError, match=f"its options are {size} bytes; mount\\(2\\) takes {os.sysconf('SC_PAGESIZE') - 1}"
    ):
        within_a_page(fstype, words(*layers))


@pytest.mark.native
def test_a_kernel_without_single_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("mounts need root")
    tried = []

    def refuse(fstype: str, options: tuple[tuple[str, str | None], ...], *_: object) -> int:
        tried.append(options)
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(long_options, "filesystem", refuse)
    layers = [tmp_path / f"{number}-{'x' * 100}" for number in range(5)]
    for number, layer in enumerate(layers):
        layer.mkdir()
        (layer / "file").write_text(str(number))
    lowerdir = ":".join(str(layer) for layer in layers)
    tree = filesystem_with_long_options("overlay", (("lowerdir", lowerdir),), 0, "overlay")
    try:
        assert tried == [tuple([("lowerdir+", str(layer)) for layer in layers])]
        assert Path(f"/proc/self/fd/{tree}/file").read_text() == "0"
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    finally:
        os.close(tree)
