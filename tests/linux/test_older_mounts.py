"""mount(2) in the place of fsopen(2) and its like: what becomes of the options."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.linux import mount as lm
from gpurun.linux import older_mounts

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
