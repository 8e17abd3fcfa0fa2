"""The sockets that systemd hands to the runtime for a container (sd_listen_fds(3))."""

from __future__ import annotations

import os

import pytest

from gpurun.engine.caller.preserved import listen_fds


@pytest.mark.parametrize(
    ("count", "found"),
    [("3", 3), ("0", 0), ("", 0), ("-1", 0), ("1.5", 0), ("\u00b2", 0), ("9" * 5000, 0)],
    ids=lambda value: ascii(value)[:12],
)
def test_how_many(count: str, found: int) -> None:
    own = str(os.getpid()).encode()
    assert listen_fds({b"LISTEN_FDS": count.encode(), b"LISTEN_PID": own}) == found
    assert listen_fds({b"LISTEN_FDS": count.encode(), b"LISTEN_PID": b"1"}) == 0, "they are for another process"
    assert listen_fds({b"LISTEN_FDS": count.encode()}) == 0
