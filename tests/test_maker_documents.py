"""What docs/amd.md and docs/intel.md show of commands is what they print on the simulated hosts that the pages name."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.gpu.host.access import group_name
from tests.conftest import runtime_path
from tests.native.runtime import ENVIRONMENT
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, Host, amd, intel
from tests.test_documents import DOCS

#: How a page calls the host of the commands that follow.
HOSTS: dict[str, Callable[[Path], Host]] = {
    "host with eight MI210": amd.mi210,
    "one with an MI300X in eight partitions": amd.mi300x,
    "host with three cards": intel.arc,
    "host with a virtual function": intel.arc,
}
#: Findings of the doctor's about the machine that the tests run on.
_OF_THE_MACHINE = re.compile(r"^\w+ +(configuration|limits of GPU memory|cgroup|BPF)\b")


def shown(page: str) -> list[tuple[str, str, list[str]]]:
    """(what the host is called, command line, lines of its output) of each command with a prompt."""
    found: list[tuple[str, str, list[str]]] = []
    host = ""
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("    $ gpurun "):
            found.append((host, line[6:], []))
        elif line.startswith("    ") and host and found:
            found[-1][2].append(line[4:])
        elif line:
            host = next((name for name in HOSTS if name in line), "")
    return found


SHOWN = [(page, *one) for page in ("amd.md", "intel.md") for one in shown(page)]


def test_there_are_outputs() -> None:
    assert len(SHOWN) >= 10 and all(host and lines for _, host, _, lines in SHOWN)


def _plain(line: str) -> str:
    """*line* without what the length of the host's paths decides."""
    return re.sub(r"\s{2,}", "  ", line.strip())


@pytest.mark.parametrize(("page", "name", "command", "lines"), SHOWN, ids=[f"{one[0]}: {one[2]}" for one in SHOWN])
def test_output(tmp_path: Path, page: str, name: str, command: str, lines: list[str]) -> None:
    host = HOSTS[name](tmp_path / "host")
    require_nodes(host.real_nodes)
    done = subprocess.run(
        [runtime_path(), *shlex.split(command)[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, **host.env},
    )
    text = done.stdout + done.stderr
    if " list" in command:  # other containers of this machine may have nodes with these numbers
        width = text.index("CONTAINERS")
        text = "".join([f"{line[:width]}\n" for line in text.splitlines()])
    for gid in (VIDEO, RENDER):
        text = text.replace(f"group {group_name(gid)}", f"group {gid}").replace(f"nodes: {group_name(gid)}", f"nodes: {gid}")
    text = re.sub(rf"  from {re.escape(str(host.path))}(/dev/\S+)", "", text).replace(str(host.path), "")
    assert [_plain(line) for line in text.splitlines() if not _OF_THE_MACHINE.match(line)] == [_plain(one) for one in lines]
