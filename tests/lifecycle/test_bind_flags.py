"""Flags of bind mounts: what a container's mount has of its source's flags and of those in the config.

As mount(2) has it for a bind remount, which is what runc does: named flags replace those of the source, times are kept
unless one is set, and in a user namespace what the host has put on its mount stays (mount_namespaces(7)).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_mounts import mounted
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.not_on("runc 1.1", reason="keeps or drops some of these in other ways")]

FLAGS = {"ro", "rw", "nosuid", "nodev", "noexec", "noatime", "relatime", "nodiratime", "nosymfollow"}
Source = Callable[[str], Path]


@pytest.fixture
def source(runtime: Runtime) -> Iterator[Source]:
    """``source(flags)``: a mount of the host, with just these flags."""
    place = runtime.directory / "source"
    place.mkdir()
    enter = runtime.bed.enter()

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words, str(place)], preexec_fn=enter, check=True)

    def make(flags: str) -> Path:
        mount("-t", "tmpfs", "-o", "strictatime", "tmpfs")
        times = "" if {"noatime", "relatime"} & set(flags.split(",")) else ",strictatime"  # no word, in /proc/mounts
        mount("--bind", "-o", f"remount,{flags}{times}")
        return place

    yield make
    runtime.cleanup()
    subprocess.run(["umount", str(place)], preexec_fn=enter, check=True)


def flags_in(runtime: Runtime, b: Bundle, place: Path, *options: str) -> set[str]:
    return mounted(runtime.output(b.args("cat", "/proc/mounts").mount("/tmp", str(place), *options)))["/tmp"][1] & FLAGS


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("of_the_source", "options", "found"),
    [
        ("ro,noexec,nosymfollow,nodiratime", "bind", "ro noexec nosymfollow nodiratime"),
        ("ro,noexec,nosymfollow,nodiratime", "bind,dev", "rw nodiratime"),
        ("ro", "bind,nosuid,nodev", "rw nosuid nodev"),
        ("ro", "bind,rw", "rw"),
        ("nosuid,nodev,noexec,noatime", "bind,dev,suid,exec,atime", "rw noatime"),
        ("nodev,nosuid,noatime", "bind,ro,exec", "ro noatime"),
        ("nodev,nosymfollow", "bind,ro,symfollow", "ro"),
        ("noatime", "bind,norelatime", "rw noatime"),
        ("noatime", "bind,nostrictatime", "rw noatime"),
        ("noatime", "bind,strictatime", "rw"),
        ("noatime", "bind,relatime", "rw relatime"),
        ("strictatime", "bind,noatime", "rw noatime"),
        ("strictatime", "bind,nodiratime", "rw nodiratime relatime"),
        ("nodiratime,noatime", "bind,diratime", "rw nodiratime noatime"),
        ("nodiratime", "bind,relatime", "rw relatime"),
        ("noatime", "bind,noatime,atime,ro", "ro noatime"),
        ("strictatime", "bind,noatime,strictatime", "rw"),
    ],
)
def test_without_a_user_namespace(
    runtime: Runtime, bundle: MakeBundle, source: Source, of_the_source: str, options: str, found: str
) -> None:
    seen = flags_in(runtime, bundle(), source(of_the_source), *options.split(","))
    assert seen == set(found.split())


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("of_the_source", "options", "found", "lost"),
    [
        ("ro,noexec,nosymfollow,nodiratime", "bind,dev", "ro noexec nodiratime", "rw nosymfollow"),
        ("ro", "bind,nosuid,nodev", "ro nosuid nodev", "rw"),
        ("nodev,nosuid,noexec,noatime", "bind,ro", "ro nosuid nodev noexec noatime", "rw"),
        ("nodev,nosymfollow", "bind,ro,symfollow", "ro nodev", "nosymfollow"),
        ("nodev,nosymfollow", "bind,rw", "rw nodev", "nosymfollow"),
        ("nodev,nosuid,noatime", "bind,ro,exec", "ro nodev nosuid noatime", "noexec"),
    ],
)
def test_in_a_user_namespace_what_the_host_has_locked_stays(
    runtime: Runtime, bundle: MakeBundle, source: Source, of_the_source: str, options: str, found: str, lost: str
) -> None:
    seen = flags_in(runtime, bundle().user_namespace(), source(of_the_source), *options.split(","))
    assert set(found.split()) <= seen and not set(lost.split()) & seen


@pytest.mark.parametrize(
    ("of_the_source", "options"),
    [
        ("ro", "bind,rw"),
        ("nodev", "bind,dev"),
        ("nosuid", "bind,suid"),
        ("noexec", "bind,exec"),
        ("noatime", "bind,relatime"),
    ],
)
def test_in_a_user_namespace_unlocking_is_refused(
    runtime: Runtime, bundle: MakeBundle, source: Source, of_the_source: str, options: str
) -> None:
    b = bundle().user_namespace().mount("/tmp", str(source(of_the_source)), *options.split(","))
    said = runtime.refused(b)
    assert 'to rootfs at "/tmp": ' in said and "operation not permitted" in said
