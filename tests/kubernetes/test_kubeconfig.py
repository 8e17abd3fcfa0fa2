"""A kubeconfig that is none, or that would be read without an end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.api import connect
from tests.deadline import within

GOOD = """apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://one.example'}}]
users: [{name: u, user: {token: t}}]
"""


def make(path: Path, what: str) -> str:
    if what == "a FIFO":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "a directory":
        path.mkdir()
    elif what == "large":
        path.write_bytes(b"a: 1\n")
        os.truncate(path, 100 << 20)
    elif what == "not UTF-8":
        path.write_bytes(GOOD.encode() + b"# \xe9\n")
    elif what == "deep":
        path.write_text("[" * 20000 + "]" * 20000)
    return str(path)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a FIFO", "is not a regular file"),
        ("a device", "is not a regular file"),
        ("a directory", "is not a regular file"),
        ("large", "is larger than 4 MiB"),
        ("not UTF-8", "can't decode byte 0xe9"),
        ("deep", "maximum recursion depth exceeded"),
        ("missing", "No configuration found"),
    ],
)
def test_what_is_no_kubeconfig(what: str, said: str, tmp_path: Path) -> None:
    path = make(tmp_path / "kubeconfig", what)
    with within(60), pytest.raises(GpurunError) as error:
        connect(path)
    assert str(error.value).startswith(f"kubeconfig {path}: ") and said in str(error.value)


def test_one_of_several_that_is_a_fifo(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(GOOD)
    fifo = make(tmp_path / "fifo", "a FIFO")
    with within(60), pytest.raises(GpurunError, match=f"^kubeconfig {fifo}: is not a regular file"):
        connect(f"{tmp_path}/good:{fifo}")


def test_the_output_of_a_command() -> None:
    """As a shell gives it: --kubeconfig <(kubectl config view --raw)."""
    reader, writer = os.pipe()
    try:
        os.write(writer, GOOD.encode())
        os.close(writer)
        assert connect(f"/dev/fd/{reader}").where == "https://one.example"
    finally:
        os.close(reader)
