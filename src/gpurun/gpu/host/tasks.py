"""Calls that a driver may hold for good: each in a thread of its own, in a helper process that is given up in time."""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import threading
import time

from gpurun.errors import error_text
from gpurun.record import to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Task:
    """A call in a thread of its own; :attr:`value` is there when it is done, :attr:`error` if it has failed."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error = ""
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except Exception as e:
            self.error = error_text(e)

    def is_done(self, deadline: float) -> bool:
        """Whether it is, waited for until *deadline* (seconds of the monotonic clock)."""
        self._thread.join(max(deadline - time.monotonic(), 0))
        return not self._thread.is_alive()


def silence(seconds: float) -> str:
    """That a driver has not answered within *seconds*, as a sentence goes on."""
    return f"its driver has not answered within {seconds:g} s: it hangs or is very slow; `dmesg` says more"


def answer(look: Callable[[], object]) -> NoReturn:
    """The whole of such a helper: what *look* returns (a record, a text) goes to stdout as the parent reads it.

    It does not return: threads may be held for good.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: no caller, no question
    data = marshal.dumps(to_wire(look()))
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)
