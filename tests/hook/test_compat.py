"""Forward compatibility: when newer CUDA libraries of an image are used, and that an image can do no harm with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from gpurun.cdi.edits import ForwardCompat
from gpurun.formats.elf import read_note
from gpurun.gpu.nvidia.edits.driver import plan_compat
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.hook.compat import Note, compat_libraries, is_newer
from tests.simdriver import Options, SimulatedDriver
from tests.simdriver.elf import shared_library

MACHINE = os.uname().machine
WANTED = ForwardCompat("/usr/local/cuda/compat", "535.104.05")
SECTION, OWNER = ".note.cuda.fwd_compatibility", b"NVIDIA Corporation"


def with_note(content: bytes, owner: bytes = OWNER, section: str = SECTION) -> bytes:
    """libcuda with a section of notes, as the toolkit's own compatibility libraries have it."""
    elf = bytearray(shared_library("libcuda.so.1", (), MACHINE))
    note = pack("<III", len(owner) + 1, len(content), 1) + owner + b"\0"
    note += bytes(-len(note) % 4) + content
    names = b"\0.shstrtab\0" + section.encode() + b"\0"
    note_at, names_at = len(elf), len(elf) + len(note)
    table_at = names_at + len(names)

    def header(name: int, kind: int, at: int, size: int) -> bytes:
        return pack("<IIQQQQIIQQ", name, kind, 0, 0, at, size, 0, 0, 4, 0)

    table = bytes(64) + header(1, 3, names_at, len(names)) + header(11, 7, note_at, len(note))
    elf[40:48] = pack("<Q", table_at)
    elf[58:64] = pack("<HHH", 64, 3, 1)
    return bytes(elf) + note + names + table


#: What libcuda 575.57.08 of NVIDIA's package cuda-compat-12-9 says of itself.
NOTE_575 = b'{"format":1,"CUDA version":"12.9","driver":[535,550,560,565,570,575],"device":[1,2,7,8,9,10,11,12,13,14]}\0'
OF_575 = Note((535, 550, 560, 565, 570, 575), "12.9")


@pytest.mark.parametrize(
    ("driver", "cuda", "compat", "note", "expected"),
    [
        ("535.104.05", "", "550.54.14", None, True),
        ("550.54.14", "", "550.163.01", None, False),
        ("550.54.14", "", "535.104.05", None, False),
        ("99.1", "", "100.1", None, True),  # numbers, not strings
        ("535.104.05", "", "550.54.14", Note((470, 535)), True),
        ("545.23", "", "550.54.14", Note((470, 535)), False),
        ("550.54.14", "", "550.163.01", Note((550,)), True),
        ("550.163.01", "", "550.163.01", Note((550,)), False),
        ("535.104.05", "", "550.54.14", Note(), False),
        ("535.104.05", "", "garbage", None, False),
        ("590.44.01", "", "575.57.08", OF_575, False),
        ("570.211.01", "", "575.57.08", OF_575, True),
        ("575.10.10", "", "575.57.08", OF_575, True),
        ("575.57.08", "", "575.57.08", OF_575, False),
        ("575.99.99", "", "575.57.08", OF_575, False),
        ("", "12.8", "575.57.08", OF_575, True),
        ("", "12.9", "575.57.08", OF_575, False),
        ("", "12.9.0", "575.57.08", OF_575, False),
        ("", "12.10", "575.57.08", OF_575, False),
        ("", "12.8", "575.57.08", None, False),  # only the libraries themselves tell their CUDA
        ("", "12.8", "575.57.08", Note((535,)), False),
        ("", "", "575.57.08", None, False),
        ("590.44.01", "12.8", "575.57.08", OF_575, False),  # the driver decides where it is known
        ("535.104.05", "12.8", "575.57.08", None, False),
    ],
)
def test_which_libraries_are_newer(driver: str, cuda: str, compat: str, note: Note | None, expected: bool) -> None:
    assert is_newer(ForwardCompat("/compat", driver, cuda_version=cuda), compat, note) is expected


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A rootfs with ``/usr/local/cuda -> cuda-12.4`` and libraries of 550.54.14 in its ``compat``."""
    compat = tmp_path / "rootfs/usr/local/cuda-12.4/compat"
    compat.mkdir(parents=True)
    (compat.parent.parent / "cuda").symlink_to("cuda-12.4")
    (compat / "libcuda.so.550.54.14").write_bytes(shared_library("libcuda.so.1", (), MACHINE))
    (compat / "libcuda.so.1").symlink_to("libcuda.so.550.54.14")
    (compat / "libnvidia-nvvm.so.550.54.14").write_bytes(shared_library("libnvidia-nvvm.so.4", (), MACHINE))
    (compat / "readme").write_text("x")
    return tmp_path / "rootfs"


@pytest.fixture
def used(image: Path) -> Iterator[Callable[[], list[tuple[str, str]]]]:
    fd = os.open(image, os.O_PATH | os.O_DIRECTORY)

    def look() -> list[tuple[str, str]]:
        entries, files = compat_libraries(fd, WANTED)
        assert bool(entries) == bool(files)
        for file in files:
            assert file.path == "/etc/ld.so.conf.d/00-compat-gpurun.conf"
            assert file.content == b"/usr/local/cuda-12.4/compat\n"
        return [(e.soname, e.path) for e in entries]

    yield look
    os.close(fd)


@pytest.fixture
def compat(image: Path) -> Path:
    return image / "usr/local/cuda-12.4/compat"


def test_newer_libraries_go_first_by_their_real_path(used: Callable[[], Any]) -> None:
    assert used() == [
        ("libcuda.so.1", "/usr/local/cuda-12.4/compat/libcuda.so.550.54.14"),
        ("libnvidia-nvvm.so.4", "/usr/local/cuda-12.4/compat/libnvidia-nvvm.so.550.54.14"),
    ]


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (with_note(NOTE_575), True),
        (with_note(NOTE_575.replace(b"535,", b"")), False),
        (with_note(json.dumps({"CUDA Version": "12.4", "Driver": [470, 535], "Device": [1]}).encode()), True),
        (with_note(json.dumps({"DRIVER": [470, 525]}).encode() + b"\0\0"), False),
        (with_note(b'{"CUDA version": "12.9"}'), False),  # it runs on no driver
        (with_note(b'{"driver": null}'), False),
        (with_note(b"{"), True),  # says nothing: the greater major decides
        (with_note(b'{"driver": 470}'), True),
        (with_note(b'{"driver": ["470"]}'), True),
        (with_note(b'{"driver": [470.0]}'), True),
        (with_note(b'{"driver": [true]}'), True),
        (with_note(b'{"driver": [470], "CUDA version": 12.9}'), True),
        (with_note(b"[" * 60000), True),
        (with_note(b'{"driver": [470]}', owner=b"somebody"), True),
        (with_note(b'{"driver": [470]}', section=".note.other"), True),
    ],
)
def test_what_the_libraries_say_of_themselves(used: Callable[[], Any], compat: Path, note: bytes, expected: bool) -> None:
    (compat / "libcuda.so.550.54.14").write_bytes(note)
    assert bool(used()) is expected


@pytest.mark.parametrize(
    ("newer", "majors", "expected"),
    [
        ("575.57.08", "535,570", False),
        ("575.57.08", "535,550,570", True),
        ("550.200.01", "550", True),
        ("550.100", "550", False),
    ],
)
def test_the_note_as_nvidia_writes_it_decides(image: Path, newer: str, majors: str, expected: bool) -> None:
    """On a host with 550.163.01: neither a greater major version nor an equal one says anything where the libraries do."""
    compat = image / "usr/local/cuda-12.4/compat"
    (compat / "libcuda.so.550.54.14").unlink()
    said = NOTE_575.replace(b"535,550,560,565,570,575", majors.encode())
    (compat / f"libcuda.so.{newer}").write_bytes(with_note(said))
    fd = os.open(image, os.O_PATH | os.O_DIRECTORY)
    entries, _ = compat_libraries(fd, ForwardCompat("/usr/local/cuda/compat", "550.163.01"))
    os.close(fd)
    assert bool(entries) is expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: (c / "libcuda.so.560.1.2").write_bytes(b""),  # two of them
        lambda c: (c / "libcuda.so.550.54.14").unlink(),
        lambda c: ((c / "libcuda.so.550.54.14").unlink(), (c / "libcuda.so.550.54.14").symlink_to("/etc/shadow")),
        lambda c: [f(c / "libcuda.so.550.54.14") for f in (os.unlink, os.mkfifo)],
        lambda c: ((c / "libcuda.so.550.54.14").unlink(), (c / "libcuda.so.550.54.14").mkdir()),
        lambda c: [(c / f"lib{n}.so.1").touch() for n in range(1001)],
        lambda c: (c.rename(c.parent / "x"), c.symlink_to("/../../../../../../../../etc")),
        lambda c: (c.rename(c.parent / "x"), c.write_text("a file")),
    ],
    ids=["two", "none", "link", "fifo", "directory", "too many", "leads out", "file"],
)
def test_what_is_not_as_it_should_be_is_left_alone(
    used: Callable[[], Any], compat: Path, spoil: Callable[[Path], object]
) -> None:
    assert used()
    spoil(compat)
    assert used() == []


@pytest.mark.parametrize("content", [b"", b"x", b"\x7fELF", shared_library("libother.so.1", (), "i386")])
def test_libraries_that_are_none_for_this_machine(used: Callable[[], Any], compat: Path, content: bytes) -> None:
    for path in compat.glob("lib*.so.550*"):
        path.write_bytes(content)
    assert used() == []


def test_a_note_that_is_longer_than_its_section_ends_with_it(tmp_path: Path) -> None:
    """The libcuda of CUDA 13.2 for Orin says 41 bytes where its section has 39."""
    content = b'{"format":1,"CUDA version":"13.2"}\0\0\0\0\0'
    library = with_note(content)
    sizes = pack("<II", len(OWNER) + 1, len(content))
    assert len(content) == 39 and library.count(sizes) == 1
    path = tmp_path / "libcuda.so.1.1"
    for said in (41, 1 << 31, (1 << 32) - 1):
        path.write_bytes(library.replace(sizes, pack("<II", len(OWNER) + 1, said)))
        fd = os.open(path, os.O_RDONLY)
        assert read_note(fd, SECTION, OWNER) == content
        os.close(fd)


def test_the_note_of_an_orin_decides(image: Path) -> None:
    """There the version of CUDA decides, because the driver has none of its own."""
    compat = image / "usr/local/cuda-12.4/compat"
    (compat / "libcuda.so.550.54.14").unlink()
    content = b'{"format":1,"CUDA version":"13.2"}'
    library = with_note(content)
    sizes = pack("<II", len(OWNER) + 1, len(content))
    (compat / "libcuda.so.1.1").write_bytes(library.replace(sizes, pack("<II", len(OWNER) + 1, len(content) + 2)))
    fd = os.open(image, os.O_PATH | os.O_DIRECTORY)
    for host, expected in (("12.6", True), ("13.2", False)):
        entries, _ = compat_libraries(fd, ForwardCompat("/usr/local/cuda/compat", "", cuda_version=host))
        assert bool(entries) is expected
    os.close(fd)


def test_every_cut_and_flipped_byte_of_a_note_is_survived(tmp_path: Path) -> None:
    good = with_note(b'{"Driver": [535]}')
    start = len(shared_library("libcuda.so.1", (), MACHINE))
    path = tmp_path / "lib"
    for n in [*range(64), *range(start, len(good))]:
        for bad in (good[:n], good[:n] + bytes([good[n] ^ 0xFF]) + good[n + 1 :]):
            path.write_bytes(bad)
            fd = os.open(path, os.O_RDONLY)
            read_note(fd, SECTION, OWNER)
            os.close(fd)


def test_consumer_gpus_do_without() -> None:
    assert plan_compat("535.1", ["NVIDIA H100 80GB HBM3"]) is not None
    assert plan_compat("535.1", ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"]) is None
    assert plan_compat("535.1", []) is not None


def planned(sim: SimulatedDriver, *env: str, settings: Settings | None = None) -> ForwardCompat | None:
    made = gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=0", *env), {}, False, sim.env, settings or Settings()))
    assert made is not None
    return made.forward_compat


def test_when_it_is_looked_for(make_sim: Callable[[Options], SimulatedDriver]) -> None:
    sim = make_sim(Options())
    found = planned(sim)
    assert found is not None and found.driver_version == sim.options.version
    assert planned(sim, "NVIDIA_DRIVER_CAPABILITIES=utility") is None
    assert planned(sim, "NVIDIA_DISABLE_CUDA_COMPAT=1") is None
    assert planned(sim, "NVIDIA_DISABLE_CUDA_COMPAT=0") is not None
    assert planned(sim, settings=Settings(cuda_compat_mode="disabled")) is None
    assert planned(sim, settings=Settings(cuda_compat_mode="hook")) is not None
    assert planned(sim, settings=Settings(features=("disable-cuda-compat-lib-hook",))) is None
