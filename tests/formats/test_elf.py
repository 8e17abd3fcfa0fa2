"""The SONAME reader, on our own libraries, on the host's, and on garbage."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.formats.elf import EM_386, EM_AARCH64, EM_X86_64, Elf, read_elf
from tests.simdriver.elf import Function, shared_library


def read(path: Path) -> Elf | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_elf(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("machine", "number"), [("x86_64", EM_X86_64), ("aarch64", EM_AARCH64), ("i386", EM_386)])
def test_simulated_library(tmp_path: Path, machine: str, number: int) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(shared_library("libcuda.so.1", (Function("cuInit", 100),), machine, ("libm.so.6",)))
    assert read(path) == Elf(number, "libcuda.so.1")
    path.write_bytes(shared_library("", (Function("cuInit", 100),), machine))
    assert read(path) == Elf(number, "")


def test_simulated_library_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    functions = (Function("cuInit", 100), Function("cuDriverGetVersion", 0, 12040))
    path.write_bytes(shared_library("libcuda.so.1", functions, os.uname().machine))
    library, version = ctypes.CDLL(str(path)), ctypes.c_int()
    assert (library.cuInit(0), library.cuDriverGetVersion(ctypes.byref(version)), version.value) == (100, 0, 12040)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "i386"])
def test_readelf_has_nothing_to_complain_about(tmp_path: Path, machine: str) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(shared_library("libcuda.so.1", (Function("cuInit", 100), Function("other", 1)), machine))
    out = subprocess.run(["readelf", "-Wld", str(path)], capture_output=True, text=True, check=True)
    assert "Library soname: [libcuda.so.1]" in out.stdout and not out.stderr


def test_libraries_of_this_host() -> None:
    found = [p for p in Path("/usr/lib").rglob("lib*.so.[0-9]") if p.is_file()][:40]
    if not found:
        pytest.skip("no shared libraries under /usr/lib")
    named = 0
    for path in found:
        elf = read(path.resolve())
        if elf is not None and elf.soname:
            assert elf.soname.startswith("lib"), path
            named += 1
    assert named


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 200, b"\x7fELF\x01\x01" + bytes(50)]
)
def test_what_is_no_library(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert read(path) is None


def test_every_cut_and_every_flipped_byte_is_survived(tmp_path: Path) -> None:
    good = shared_library("libcuda.so.1", (Function("cuInit", 100),))
    path = tmp_path / "x"
    for n in range(len(good)):
        for bad in (good[:n], good[:n] + bytes([good[n] ^ 0xFF]) + good[n + 1 :]):
            path.write_bytes(bad)
            elf = read(path)
            assert elf is None or "/" not in elf.soname
