"""A function done with the node's root as its own: in a child, so that the pod keeps its own root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from gpurun.errors import GpurunError, strerror_lower

#: Where the node's programs are looked for, whatever the image says.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin"


def on_node(root: str, work: Callable[[], str]) -> str:
    """What *work* returns, done below chroot(2) *root* (empty: none).  Raises :class:`GpurunError` with what it raised.

    Links of the node that are absolute, and the node's programs, then mean what they mean there.  *work* must import
    nothing any more: there it would find the node's files.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(root, work, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return answer
    raise GpurunError(answer or f"the child that works on the node ended with {code}")


def _child(root: str, work: Callable[[], str], writing: int) -> NoReturn:
    code = 1
    try:
        if root:
            os.chroot(root)
        os.chdir("/")
        os.environ["PATH"] = _PATH
        answer = work()
        code = 0
    except GpurunError as e:
        answer = str(e)
    except OSError as e:
        answer = f"{e.filename or root or '/'}: {strerror_lower(e.errno or 0)}"
    except BaseException as e:  # whatever it is, the parent must hear of it, and this process must end here
        answer = f"{type(e).__name__}: {e}"
    try:
        os.write(writing, answer.encode()[:32768])
        sys.stderr.flush()
    finally:
        os._exit(code)
