"""Starting a fresh interpreter that has gpurun's modules: what the engine makes the container's init of.

The child may sit in a user namespace that cannot read the directories gpurun is installed in, so from the launcher it
gets its modules through an inherited descriptor; from a source tree it gets the tree's path.
"""

from __future__ import annotations

import posix
import sys

from gpurun.record import Record

_SOURCE_CODE = "import sys;sys.path.insert(0,{!r});from gpurun.launcher.fresh_interpreter import run;run()"


INIT_ENTRY = "gpurun.engine.inside.init_starter:main"


EXEC_ENTRY = "gpurun.engine.inside.exec_starter:main"


NVML_ENTRY = "gpurun.gpu.nvidia.host.nvml_process:main"


READINGS_ENTRY = "gpurun.gpu.readings_process:main"


SURVEY_ENTRY = "gpurun.gpu.survey_process:main"


MPS_ENTRY = "gpurun.gpu.nvidia.mps.supervisor:main"


NODE_MPS_ENTRY = "gpurun.gpu.nvidia.mps.node_supervisor:main"


MONITOR_ENTRY = "gpurun.library.monitor:main"


MAIN_ENTRY = "gpurun.__main__:main"


class Child(Record):
    """How to start it: execve *executable* (or a sealed copy of it) with *argv*, *fd* open and not close-on-exec.

    *fd* is None when none is needed.  Words after *argv* are the child's own ``sys.argv[1:]``.
    """

    argv: tuple[str, ...]
    executable: str
    fd: int | None


def child_command(entry: str) -> Child:
    """The :class:`Child` that calls *entry* (``module:function``) and exits with what that returns (None is 0).

    argv[0] is the interpreter's path, because the interpreter finds its library by it.
    """
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is not None:
        argv = (bundle.python, "-ISBc", bundle.child_code, str(bundle.fd), entry)
        return Child(argv, bundle.python, bundle.fd)
    python = str(getattr(sys, "_base_executable", sys.executable))
    source = sys.modules["gpurun"].__path__[0].rpartition("/")[0]
    return Child((python, "-ISBc", _SOURCE_CODE.format(source), "-", entry), python, None)


def command_line(entry: str) -> tuple[str, ...]:
    """The words that call *entry*, as :func:`child_command` has it, where no descriptor can be inherited: from systemd."""
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is None:
        return child_command(entry).argv
    path = posix.readlink(f"/proc/self/fd/{bundle.fd}")
    code = f"import posix,sys;sys.argv.insert(1,str(posix.open({path!r},posix.O_RDONLY)));{bundle.child_code}"
    return (bundle.python, "-ISBc", code, entry)


def program_file() -> tuple[int, ...]:
    """The descriptor of the launcher's file, from which modules are imported; () where there is none."""
    bundle = getattr(sys, "gpurun_bundle", None)
    return () if bundle is None or bundle.fd < 0 else (bundle.fd,)


def end_imports() -> None:
    """Nothing can be imported any more: an image may have a hand in what would come.

    The launcher's file is closed with it.  It is the host's, and who may look into this process could open it by
    /proc/<pid>/fd for writing (CVE-2019-5736 by another door); what modules have left open goes next
    (:func:`gpurun.linux.fs.close_others`).
    """
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is not None and bundle.fd >= 0:
        posix.close(bundle.fd)
        bundle.fd = -1
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.meta_path[:] = []


def run() -> None:
    """The child's side when it runs from a source tree."""
    entry = sys.argv[2]
    sys.argv = [entry, *sys.argv[3:]]
    module, _, function = entry.partition(":")
    __import__(module)
    sys.exit(getattr(sys.modules[module], function)())
