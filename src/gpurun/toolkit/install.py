"""``install`` and ``uninstall``: a client is told of gpurun, or told no more, in one command.

What is changed in its files is decided by :mod:`gpurun.clients.install`; here it is shown (``--dry-run``), written, checked
by the client's own program, and taken back if that does not take it.  For ``docker run --gpus`` and ``ctr run --gpus`` the
names of NVIDIA's programs are linked where daemons look for programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from gpurun.clients import files
from gpurun.clients.apply import apply_all, forget_kept
from gpurun.clients.files import Change
from gpurun.clients.install import (
    CLIENTS,
    KUBERNETES,
    Wish,
    client_of_kubernetes,
    installed,
    restart_command,
    runtime_class,
    uninstalled,
)
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import GpurunError, UsageError, oserror_text
from gpurun.invocation import Invocation
from gpurun.output import write_document, write_stderr, write_stdout
from gpurun.toolkit.names import is_one_file, link_names, links_to, own_path

NAMES_DIRECTORY = "/usr/local/bin"
HOOK = "nvidia-container-runtime-hook"
#: Where systemd lets a service look for programs.
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_ASK_FOR_GPUS = ("docker", "containerd")  # the clients that look for NVIDIA's programs themselves


def install(invocation: Invocation) -> int:
    """``install CLIENT``.  The exit code is 0 also where nothing was to be done; raises :class:`GpurunError`, OSError."""
    if invocation.flag("runtime-class"):
        write_stdout(runtime_class(invocation.option("name") or "gpurun"))
        return 0
    what, wish = _wish(invocation)
    changes = installed(wish)
    names = "" if invocation.flag("no-names") or wish.client not in _ASK_FOR_GPUS else _missing_names()
    if invocation.flag("dry-run"):
        _show(changes)
        if names:
            write_stdout(f"# and links of NVIDIA's names in {names}, for --gpus\n")
        return 0
    _apply(wish, changes)
    for path, target in link_names(names, own_path(), force=False) if names else ():
        _say(f"{path} -> {target}")
    name = wish.entry.name
    if not changes:
        _say(f"{wish.client} knows the runtime {name} already ({wish.file()})")
    _restart(invocation, wish, changes, bool(names) or wish.entry.cdi)
    if what == KUBERNETES:
        _say(f"pods name it by `runtimeClassName: {name}`, once for each cluster: gpurun install kubernetes --runtime-class")
    return 0


def uninstall(invocation: Invocation) -> int:
    """``uninstall CLIENT``: the inverse, which also takes away names that no client is left to use."""
    what, wish = _wish(invocation)
    changes = uninstalled(wish)
    others = [client for client in _ASK_FOR_GPUS if client != wish.client and uninstalled(Wish(client, wish.entry))]
    names: list[str] = []
    if wish.client in _ASK_FOR_GPUS and not others:  # install has linked them to itself, whatever the client calls
        targets = {wish.entry.binary, *([own_path()] if is_one_file() else [])}
        names = [path for target in sorted(targets) for path in links_to(NAMES_DIRECTORY, target)]
    if invocation.flag("dry-run"):
        _show(changes)
        for path in names:
            write_stdout(f"# and {path} goes\n")
        return 0
    _apply(wish, changes)
    forget_kept(changes)
    for path in names:
        os.unlink(path)
        _say(f"{path} is gone")
    if not changes:
        _say(f"{wish.client} does not know the runtime {wish.entry.name} ({wish.file()})")
    _restart(invocation, wish, changes, bool(names))
    if what == KUBERNETES:
        _say(f"in the cluster: kubectl delete runtimeclass {wish.entry.name}")
    return 0


def _wish(invocation: Invocation) -> tuple[str, Wish]:
    """What is asked for, and of which client."""
    what = invocation.args[0]
    if what not in (*CLIENTS, KUBERNETES):
        raise UsageError(f'{invocation.command}: no client "{what}": {", ".join(CLIENTS)} or {KUBERNETES} is meant')
    name = invocation.option("name") or "gpurun"
    binary = invocation.option("path") or own_path()
    if not binary.startswith("/"):
        raise UsageError(f'--path="{binary}" is no absolute path')
    client = client_of_kubernetes() if what == KUBERNETES else what
    entry = RuntimeEntry(name, binary, invocation.flag("default"), invocation.flag("cdi"))
    return what, Wish(client, entry, invocation.option("config"), invocation.option("drop-in"))


def _show(changes: tuple[Change, ...]) -> None:
    colours = os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    write_document("".join([files.difference(change, colours) for change in changes]))


def _apply(wish: Wish, changes: tuple[Change, ...]) -> None:
    """Write *changes*, let the client read them, and say so.  Raises :class:`GpurunError`: then nothing is changed."""
    try:
        apply_all(wish, changes)
    except PermissionError as e:
        raise GpurunError(f"{oserror_text(e)}: run it as root, or with --dry-run to see what it would change") from None
    for change in changes:
        kept = f" (before: {change.path}{files.KEPT})" if os.path.exists(change.path + files.KEPT) else ""
        _say(f"{change.path} is gone" if change.text is None else f"wrote {change.path}{kept}")


def _missing_names() -> str:
    """The directory that NVIDIA's names are to be linked in; empty where a daemon finds such a program already."""
    return "" if shutil.which(HOOK, path=SERVICE_PATH) else NAMES_DIRECTORY


def _restart(invocation: Invocation, wish: Wish, changes: tuple[Change, ...], whole: bool) -> None:
    """Restart the client, or say how, if it has something new to read."""
    command = restart_command(wish.client, whole)
    if not command or not (changes or whole):
        return
    if not invocation.flag("restart"):
        ends = " (running containers end, but with live-restore)" if wish.client == "docker" and "restart" in command else ""
        _say(f"{wish.client} reads it after: {' '.join(command)}{ends}")
        return
    if not os.path.isdir("/run/systemd/system"):
        raise GpurunError(f"--restart needs systemd, which does not run here: restart {wish.client} by hand")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        unit = command[-1]
        if subprocess.run(["systemctl", "is-active", "--quiet", unit], timeout=60, stdin=subprocess.DEVNULL).returncode:
            todo = f"it reads its configuration when it starts: systemctl start {unit}"
            raise GpurunError(f"`{' '.join(command)}` failed, because {unit} does not run; {todo}")
        raise GpurunError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    _say(f"done: {' '.join(command)}")


def _say(text: str) -> None:
    write_stderr(text)
