"""Exec and Attach: standard streams over the channels of a websocket (``v4.channel.k8s.io``).

A frame begins with the number of its channel.  That protocol cannot say that standard input has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
import tty
from typing import Any

import websocket

STDIN, STDOUT, STDERR, STATUS, RESIZE = b"\0", b"\1", b"\2", b"\3", b"\4"


def converse(url: str, wants_input: bool, timeout: float) -> int:
    """Copy the streams until the other side ends them; returns the exit code, 1 with its text on stderr for an error."""
    remote = websocket.create_connection(
        url.replace("http://", "ws://"), subprotocols=["v4.channel.k8s.io"], timeout=timeout
    )
    terminal = wants_input and os.isatty(0)
    kept: list[Any] = termios.tcgetattr(0) if terminal else []
    woken, waker = os.pipe()
    try:
        if terminal:
            tty.setraw(0)
            os.set_blocking(waker, False)
            signal.set_wakeup_fd(waker)
            signal.signal(signal.SIGWINCH, lambda *_: None)
            os.write(waker, b"\0")  # the size that there is
        return _copy(remote, woken, wants_input, timeout)
    finally:
        if terminal:
            termios.tcsetattr(0, termios.TCSADRAIN, kept)
        remote.close()


def _copy(remote: websocket.WebSocket, woken: int, wants_input: bool, timeout: float) -> int:
    watched: list[Any] = [remote, woken] + ([0] if wants_input else [])
    while True:
        ready = select.select(watched, [], [], timeout)[0]
        if not ready:
            sys.exit(f"cri: nothing more within {timeout:g} s")
        if woken in ready:
            os.read(woken, 64)
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
            remote.send_binary(RESIZE + json.dumps({"Width": columns, "Height": rows}).encode())
        if 0 in ready:
            typed = os.read(0, 4096)
            if typed:
                remote.send_binary(STDIN + typed)
            else:
                watched.remove(0)
        if remote in ready:
            code, data = remote.recv_data()
            if code == websocket.ABNF.OPCODE_CLOSE:
                return 0
            channel, data = data[:1], data[1:]
            if channel == STATUS:
                return _exit_code(json.loads(data))
            if data and channel in (STDOUT, STDERR):
                os.write(1 if channel == STDOUT else 2, data)


def _exit_code(status: dict[str, Any]) -> int:
    if status["status"] == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    print(f"cri: {status.get('message')}", file=sys.stderr)
    return 1
