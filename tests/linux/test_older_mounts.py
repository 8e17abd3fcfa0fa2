"""mount(2) in the place of fsopen(2) and its like: what becomes of the options."""

from __future__ import annotations

import posix
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.linux import mount as lm
from gpurun.linux import older_mounts
from gpurun.linux.fs import mount_id
from gpurun.linux.mountinfo import MountEntry

CONTEXT = "system_u:object_r:container_file_t:s0:c1,c2"


@pytest.mark.parametrize(
    ("options", "flags", "data"),
    [
        ((), 0, ""),
        ((("size", "64k"), ("mode", "755")), 0, "size=64k,mode=755"),
        ((("context", CONTEXT),), 0, f'context="{CONTEXT}"'),
        ((("size", "64k"), ("context", CONTEXT), ("mode", "1777")), 0, f'size=64k,context="{CONTEXT}",mode=1777'),
        ((("context", "system_u:object_r:tmp_t:s0"),), 0, "context=system_u:object_r:tmp_t:s0"),
        ((("rootcontext", CONTEXT), ("fscontext", CONTEXT)), 0, f'rootcontext="{CONTEXT}",fscontext="{CONTEXT}"'),
        ((("defcontext", CONTEXT),), 0, f'defcontext="{CONTEXT}"'),
        ((("mpol", "bind:0,2"),), 0, "mpol=bind:0,2"),  # tmpfs knows no quotes, and takes what follows as a node
        ((("ro", None), ("sync", None), ("nr_inodes", "5")), lm.MS_RDONLY | lm.MS_SYNCHRONOUS, "nr_inodes=5"),
        ((("newinstance", None),), 0, "newinstance"),
        ((("ro", ""),), 0, "ro="),  # an option with a value is none that mount(2) has a flag for
    ],
)
def test_options(
    monkeypatch: pytest.MonkeyPatch, options: tuple[tuple[str, str | None], ...], flags: int, data: str
) -> None:
    """A label's commas stand in quotes, as the security modules read them (security_sb_eat_lsm_opts of the kernel)."""
    made: list[Any] = []

    def mounted(*given: Any, **more: Any) -> int:
        made.append((given, more))
        return 7

    monkeypatch.setattr(older_mounts, "mount_detached", mounted)
    assert older_mounts.new_filesystem("tmpfs", options, 0, "tmpfs") == 7
    assert made == [(("tmpfs", flags, data, 0, "tmpfs"), {"layers": ()})]


@pytest.mark.parametrize(
    ("mount_is", "file_system_is", "options", "flags", "set_again"),
    [
        ("rw", "rw", (("size", "1m"),), 0, False),
        ("ro", "rw", (("size", "1m"),), 0, True),  # the mount's own flag: it is not to become the file system's
        ("ro", "ro", (("size", "1m"),), lm.MS_RDONLY, False),
        ("ro", "ro", (("size", "1m"), ("rw", None)), 0, True),
        ("rw", "rw", (("size", "1m"), ("ro", None)), lm.MS_RDONLY, False),
    ],
)
def test_new_options_of_a_file_system(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mount_is: str,
    file_system_is: str,
    options: tuple[tuple[str, str | None], ...],
    flags: int,
    set_again: bool,
) -> None:
    fd = posix.open(tmp_path, posix.O_RDONLY)
    number = mount_id(fd)
    entry = MountEntry(number, "/", "/x", "tmpfs", read_only=file_system_is == "ro")
    calls: list[tuple[int, str]] = []
    changes: list[tuple[int, int, int]] = []
    monkeypatch.setattr(older_mounts, "mounts", lambda: [entry])
    monkeypatch.setattr(posix, "fstatvfs", lambda _fd: SimpleNamespace(f_flag=lm.MS_RDONLY if mount_is == "ro" else 0))
    monkeypatch.setattr(lm, "mount", lambda _source, _path, _type, given, data: calls.append((given, data)))
    monkeypatch.setattr(older_mounts, "_change", lambda _fd, *given: changes.append(given))
    older_mounts.reconfigure(fd, options)
    posix.close(fd)
    ((given, data),) = calls
    assert given & lm.MS_REMOUNT and not given & lm.MS_BIND and data == "size=1m"
    assert given & lm.MS_RDONLY == flags
    assert changes == ([(lm.MOUNT_ATTR_RDONLY, 0, 0)] if set_again else [])
