"""Images that mean harm: refused with one sentence, nothing is left, and gpurun itself stays small."""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError, GpurunError
from gpurun.images.bundle import BundleRequest, make_bundle
from gpurun.images.config import container_config
from gpurun.images.unpack import Limits
from gpurun.linux.procfs import stat
from tests.images.making import CONFIG, USERS, layer, layout
from tests.native.waiting import wait_until

BASE = layer(*USERS, ("srv", "dir", None))

UNLIMITED = Limits()


def refused(source: Path | str, output: Path, limits: Limits = UNLIMITED) -> str:
    with pytest.raises(GpurunError) as e:
        make_bundle(BundleRequest(str(source), str(output), limits=limits), os.environ)
    assert not output.exists()
    text = str(e.value)
    assert "\n" not in text and len(text) < 1500
    return text


def header(member: tarfile.TarInfo, **pax: str) -> bytes:
    member.pax_headers = pax
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return made.getvalue()


@pytest.mark.parametrize("name", ["mtime", "uid", "size", "path"])
@pytest.mark.parametrize("value", ["nan", "1e30", "-7", "1" * 30, "\0"])
def test_numbers_that_are_none(tmp_path: Path, name: str, value: str) -> None:
    source = layout(tmp_path / "image", BASE, header(tarfile.TarInfo("srv/file"), **{name: value}))
    try:
        make_bundle(BundleRequest(str(source), str(tmp_path / "out")), os.environ)
    except GpurunError as e:
        assert "\n" not in str(e) and not (tmp_path / "out").exists()
    else:  # a value that umoci takes stays in the image
        assert {entry.name for entry in (tmp_path / "out/rootfs").iterdir()} <= {"etc", "srv", value}


LEAVING: dict[str, Callable[[str], bytes]] = {
    "..": lambda outside: layer(("../../../" + outside + "/new", "file", "evil")),
    "absolute": lambda outside: layer((outside + "/new", "file", "evil")),
    "through a link": lambda outside: layer(("srv", "link", outside), ("srv/new", "file", "evil")),
    "hard link": lambda outside: layer(("srv/hard", "hard", outside + "/secret"), ("srv/hard", "file", "evil")),
    "whiteout": lambda outside: layer(("srv", "link", outside), ("srv/.wh.secret", "file", "")),
}


@pytest.mark.parametrize("how", LEAVING)
def test_layers_stay_below_the_root(tmp_path: Path, how: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    source = layout(tmp_path / "image", BASE, LEAVING[how](str(outside)))
    try:
        make_bundle(BundleRequest(str(source), str(tmp_path / "out")), os.environ)
    except GpurunError:
        assert not (tmp_path / "out").exists()
    assert os.listdir(outside) == ["secret"] and (outside / "secret").read_text() == "secret"


@pytest.mark.parametrize("what", ["link", "directory link", "fifo"])
@pytest.mark.parametrize("at", ["index.json", "blobs/sha256"])
def test_links_in_a_layout(tmp_path: Path, what: str, at: str) -> None:
    source = layout(tmp_path / "image", BASE)
    path = source / at
    if at == "blobs/sha256":
        path = next(path.iterdir())
    if what == "directory link":
        path = source / "blobs"
    path.rename(tmp_path / "away")
    os.mkfifo(path) if what == "fifo" else path.symlink_to(tmp_path / "away")
    assert f"{path} is a link or a special file" in refused(source, tmp_path / "out")
    assert "is a link or a special file" in refused(f"oci:{source}", tmp_path / "out")


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("named", ["", "oci-archive:"])
def test_links_in_an_archive_of_a_layout(tmp_path: Path, kind: str, named: str) -> None:
    source = layout(tmp_path / "image", BASE)
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-C", source, "-cf", archive, "."], check=True)
    with tarfile.open(archive, "a") as more:
        member = tarfile.TarInfo("./index.json")
        member.type, member.linkname = (tarfile.SYMTYPE, "/etc/passwd") if kind == "link" else (tarfile.FIFOTYPE, "")
        more.addfile(member)
    assert "there are links or special files in it" in refused(f"{named}{archive}", tmp_path / "out")


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive\n" * 1000)
    assert "nor an archive that tar can read" in refused(tmp_path / "text", tmp_path / "out")
    os.mkfifo(tmp_path / "fifo")
    for prefix in ("", "docker-archive:", "oci-archive:", "tarball:"):
        assert "is not a regular file" in refused(f"{prefix}{tmp_path}/fifo", tmp_path / "out")
    assert "no such file or directory" in refused(tmp_path / "none", tmp_path / "out")
    assert "no such file or directory" in refused(f"oci:{tmp_path}/none", tmp_path / "out")


@pytest.mark.parametrize("kind", ["layer", "archive", "name"])
def test_a_header_of_400_mib_takes_no_memory(tmp_path: Path, kind: str) -> None:
    """The peak of gpurun's own process; the programs that it runs are limited (see below)."""
    size = 400 << 20
    info = tarfile.TarInfo("././@LongLink" if kind == "name" else "PaxHeaders/x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME if kind == "name" else tarfile.XHDTYPE, size
    path = tmp_path / "header.tar"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf())
        if kind == "name":
            for _ in range(size >> 20):
                file.write(b"a" * (1 << 20))
        else:
            file.write(f"{size} comment=".encode().ljust(1 << 20, b"a"))
            for _ in range((size >> 20) - 1):
                file.write(b"a" * (1 << 20))
        file.write(tarfile.TarInfo("file").tobuf() + bytes(1024))
    source = path
    if kind == "layer":
        source = layout(tmp_path / "image", gzip.decompress(path.read_bytes()))
    program = (
        "import os, sys\n"
        "from gpurun.errors import GpurunError\n"
        "from gpurun.images.bundle import BundleRequest, make_bundle\n"
        "try:\n make_bundle(BundleRequest(sys.argv[1], sys.argv[2]), os.environ)\n"
        "except GpurunError as e:\n print(e)\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, source, tmp_path / "out"], capture_output=True, text=True, env=env, check=True
    )
    assert int(done.stdout.splitlines()[-1]) < 100 << 10  # KiB


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own: root")
def test_an_image_that_is_too_large(tmp_path: Path) -> None:
    source = layout(tmp_path / "image", BASE, layer(("srv/a", "file", bytes(8 << 20)), ("srv/b", "file", bytes(8 << 20))))
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", where], check=True)
    try:
        assert "takes more than 12582912 bytes of disk (see --max-size)" in refused(source, where / "out", Limits(12 << 20))
        assert "umoci: " in refused(source, where / "out", Limits(4 << 20))  # one file alone is larger
        make_bundle(BundleRequest(str(source), str(where / "out"), limits=Limits(32 << 20)), os.environ)
    finally:
        subprocess.run(["umount", where], check=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": "x"}, "config: "),
        ({"config": {"Entrypoint": "sh"}}, "config.Entrypoint"),
        ({"config": {"Cmd": [1]}}, "config.Cmd[0]"),
        ({"config": {"Cmd": [None]}}, "config.Cmd[0]"),
        ({"config": {"Env": ["A=\0"]}}, "config.Env[0]"),
        ({"config": {"WorkingDir": 7}}, "config.WorkingDir"),
        ({"config": {"User": {}}}, "config.User"),
        ({"config": {"User": "0" * 5000}}, "config.User"),
        ({"config": {"User": "4294967295"}}, "config.User"),
        ({"config": {"User": "-1"}}, "config.User"),
        ({"config": {"Labels": ["a"]}}, "config.Labels"),
        ({"config": {"Labels": {"a": 1}}}, "config.Labels.a"),
        ({"config": {"Labels": {"a\x1b[2J": 1}}}, "config.Labels.a\\x1b"),
        ({"config": {"StopSignal": ["a"]}}, "config.StopSignal"),
        ({"config": {"ExposedPorts": ["80"]}}, "config.ExposedPorts"),
        ({"config": {}, "author": 10**400}, "author"),
        ({"os": {}, "created": []}, ""),
    ],
)
def test_configurations_that_are_none(change: dict[str, Any], said: str) -> None:
    if not said:
        container_config({**CONFIG, "config": {}, **change}, "rootfs")
        return
    with pytest.raises(ConfigError) as e:
        container_config({**CONFIG, **change}, "rootfs")
    assert said in str(e.value) and len(str(e.value)) < 600


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"rootfs": ' + "9" * 10_000 + "}", '{"x": "' + "a" * (5 << 20) + '"}']
)
def test_configurations_that_are_too_much(tmp_path: Path, text: str) -> None:
    assert refused(layout(tmp_path / "image", BASE, raw=text.encode()), tmp_path / "out")


def test_without_the_programs(tmp_path: Path) -> None:
    source = layout(tmp_path / "image", BASE)
    (tmp_path / "bin").mkdir()
    request = BundleRequest(str(source), str(tmp_path / "out"))
    with pytest.raises(GpurunError, match=r"there is no skopeo and no umoci here \(`apt-get install skopeo umoci`\)"):
        make_bundle(request, {"PATH": str(tmp_path / "bin")})
    assert not (tmp_path / "out").exists()


def stand_in(directory: Path, script: str) -> dict[str, str]:
    """An environment with a ``skopeo`` and a ``umoci`` that run *script*."""
    directory.mkdir()
    for name in ("skopeo", "umoci"):
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}


def test_the_programs_have_limits(tmp_path: Path) -> None:
    source = layout(tmp_path / "image", BASE)
    env = stand_in(tmp_path / "bin", "echo memory $(ulimit -v) file $(ulimit -f) threads $GOMAXPROCS; exit 1")
    with pytest.raises(GpurunError) as e:
        make_bundle(BundleRequest(str(source), str(tmp_path / "out"), limits=Limits(1 << 30)), env)
    assert re.fullmatch(rf"{source}: skopeo: memory {4 << 20} file {1 << 21} threads [1-8]", str(e.value))


def test_ended_while_a_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the program is there, and before whoever started it knows it."""
    source = layout(tmp_path / "image", BASE)
    env = stand_in(tmp_path / "bin", "exec sleep 1000")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **more))
        signal.pthread_kill(
            threading.get_ident(), signal.SIGTERM
        )  # gpurun has no other thread, but a test before may have one
        return started[0]

    def end(*_: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        monkeypatch.setattr(subprocess, "Popen", start)
        with pytest.raises(SystemExit):
            make_bundle(BundleRequest(str(source), str(tmp_path / "out")), env)
    finally:
        signal.signal(signal.SIGTERM, before)
        known = [child.returncode for child in started]
        for child in started:
            child.kill()
            child.wait()
    assert known == [-signal.SIGKILL] and not (tmp_path / "out").exists()


def test_ended_while_a_program_works(tmp_path: Path) -> None:
    source = layout(tmp_path / "image", BASE)
    os.mkfifo(tmp_path / "began")
    env = stand_in(tmp_path / "bin", f"echo $$ >{tmp_path}/began; exec sleep 1000")
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, "-m", "gpurun", "bundle", str(source), "--output", str(tmp_path / "out")]
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL) as gpurun:
        pid = int((tmp_path / "began").read_text())
        gpurun.terminate()
        assert gpurun.wait(60) == 143
    assert not (tmp_path / "out").exists()
    wait_until(lambda: (found := stat(pid)) is None or found[0] == "Z")  # who inherits it may reap it later


def test_an_archive_of_which_tar_says_much(tmp_path: Path) -> None:
    """More than a pipe holds, of keywords that tar does not know; and of errors, which are no warnings."""
    with tarfile.open(tmp_path / "root.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(2000):
            member = tarfile.TarInfo(f"srv/{number}")
            member.pax_headers = {f"UNKNOWN.{number}.{'k' * 200}": "v"}
            archive.addfile(member)
    make_bundle(BundleRequest(str(tmp_path / "root.tar"), str(tmp_path / "out")), os.environ)
    assert len(os.listdir(tmp_path / "out/rootfs/srv")) == 2000
    damaged = b"".join(b"\xff" * 512 + layer((f"srv/{number}", "file", "x"))[:1024] for number in range(8_000))
    (tmp_path / "damaged.tar").write_bytes(damaged)
    assert refused(tmp_path / "damaged.tar", tmp_path / "other")
