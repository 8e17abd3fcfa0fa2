"""A copy of this process (clone3(2)) that becomes a process of the container: see init.py and setter.py.

Only for a sealed interpreter (launcher/sealed.py).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix

from gpurun.engine.inside.enter_process import set_oom_score_adj
from gpurun.engine.signals import FROM_OTHERS
from gpurun.errors import GpurunError
from gpurun.linux import process as lp
from gpurun.linux.files import read_file
from gpurun.linux.fs import close_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_SIGINT = 2


def clone_copy(
    clone: Callable[[], int], become: Callable[[], NoReturn], keep: tuple[int, ...], score: int | None, dumpable: bool
) -> int:
    """Have *clone* make a copy of this process, and call *become* in it; returns the pid.

    The copy keeps 0 to 2 and the descriptors *keep* (-1: none), and closes all others first of all.  It has the OOM score
    adjustment *score* (None: ours) from its birth, and unless it is to be *dumpable* no process without CAP_SYS_PTRACE can
    look into it from its birth on.  No signal is delivered until both have gone their ways.  Raises what *clone* raises, in
    the caller.
    """
    own_score = None if score is None else int(read_file("/proc/self/oom_score_adj", 16))
    was_dumpable = lp.prctl(lp.PR_GET_DUMPABLE)
    was = _signal.pthread_sigmask(_signal.SIG_BLOCK, FROM_OTHERS)
    pid = -1
    try:
        set_oom_score_adj(score)
        if not dumpable:
            lp.prctl(lp.PR_SET_DUMPABLE, 0)
        pid = clone()
    finally:
        if pid != 0:
            if was_dumpable == 1:  # 2 is of a program with privileges of its own, and cannot be set
                lp.prctl(lp.PR_SET_DUMPABLE, 1)
            try:
                set_oom_score_adj(own_score)
            except GpurunError:
                pass  # it concerns only this short-lived process
            _signal.pthread_sigmask(_signal.SIG_SETMASK, was)
    if pid == 0:
        try:
            if _signal.getsignal(_SIGINT) is _signal.default_int_handler:  # to end by it at once, and not to unwind
                _signal.signal(_SIGINT, _signal.SIG_DFL)
            close_others(tuple([fd for fd in keep if fd >= 0]))
            _signal.pthread_sigmask(_signal.SIG_SETMASK, was)
            become()
        finally:  # and never on in the caller's place
            posix._exit(1)
    return pid
