"""``install`` and ``uninstall``: gpurun is registered with a client, or removed from it, in one command.

What is changed in its files is decided by :mod:`gpurun.clients.install`; here it is shown (``--dry-run``), written, checked
by the client's own program, and taken back if that does not take it.  For ``docker run --gpus`` and ``ctr run --gpus`` the
names of the programs of the maker whose GPUs this host has are linked where daemons look for programs.
"""

from __future__ import annotations

import os
import re
import shutil

from gpurun.clients import files, ledger, restart
from gpurun.clients.apply import apply_all, check_beforehand
from gpurun.clients.files import Change
from gpurun.clients.install import (
    CLIENTS,
    KUBERNETES,
    USER_FILES,
    Setup,
    binary_of,
    callers,
    client_of_kubernetes,
    places,
    plan_install,
    plan_uninstall,
    runtime_class,
    user_file,
)
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import GpurunError, UsageError, clean, oserror_text
from gpurun.gpu.vendors import present
from gpurun.invocation import Invocation
from gpurun.output import write_document, write_stderr, write_stdout
from gpurun.toolkit.names import is_one_file, link_names, links_to, missing_links, names_of, own_path

NAMES_DIRECTORY = "/usr/local/bin"
#: Maker → the program by which a daemon knows that the maker's toolkit is there, and the clients that look for it.
#: dockerd does not look for AMD's where it finds NVIDIA's, so on hosts with only AMD's NVIDIA's names are not made.
SIGNS = {
    "nvidia": ("nvidia-container-runtime-hook", ("docker", "containerd")),
    "amd": ("amd-container-runtime", ("docker",)),
}
#: Where systemd lets a service look for programs.
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
#: Of `uninstall`: every client that `install` has changed.
ALL = "all"
#: Names of runtimes: what all clients take, and a handler of a RuntimeClass (a DNS label).
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_HANDLER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_OWNERS = {"nvidia": "NVIDIA's", "amd": "AMD's"}
_ASK_FOR_GPUS = ("docker", "containerd")  # the clients that look for makers' programs themselves


def install(invocation: Invocation) -> int:
    """``install CLIENT``.  The exit code is 0 also where nothing was to be done; raises :class:`GpurunError`, OSError."""
    if invocation.flag("runtime-class"):
        write_stdout(runtime_class(_name(invocation, KUBERNETES)))
        return 0
    what, setup = _setup(invocation)
    asked = _read_restart(invocation, {setup.client})
    no_names = invocation.flag("no-names") or invocation.flag("user") or setup.client not in _ASK_FOR_GPUS
    with ledger.exclusive_lock():
        changes = plan_install(setup)
        makers = () if no_names else _makers_to_name(setup.client)
        names = names_of(makers)
        missing = missing_links(NAMES_DIRECTORY, own_path(), force=False, names=names) if names else []
        whole = bool(missing) or setup.entry.cdi
        entry = ledger.new_entry(setup, own_path() if is_one_file() else setup.entry.binary, whole)
        before = ledger.find(entry)
        again = False
        if before is not None and not changes:  # a call that was killed may not have come to the restart
            unread = ledger.since(before.unread)
            again = bool(asked) and unread is not None and not restart.has_read(setup.client, unread)
            whole = whole or (again and before.needs == restart.RESTART)
        if invocation.flag("dry-run"):
            _show(changes)
            if missing:
                owners = " and ".join([_OWNERS[maker] for maker in makers])
                write_stdout(f"# and links of {owners} names in {NAMES_DIRECTORY}, for --gpus\n")
            _show_restart(setup.client, bool(changes or missing or again), whole, asked)
            if problem := check_beforehand(setup, changes):
                raise GpurunError(problem)
            return 0
        if changes:
            ledger.note(entry)
            try:
                _apply(setup, changes)
            except BaseException:
                ledger.note(before) if before is not None else ledger.forget(entry)
                raise
        for path, target in link_names(NAMES_DIRECTORY, own_path(), force=False, names=names) if missing else ():
            _say(f"{path} -> {target}")
        if not no_names and (text := _whose_gpus(setup.client)):
            _say(text)
    if not changes:
        _say(f"{setup.client} knows the runtime {setup.entry.name} already ({setup.file()})")
    if (changes or missing or again) and _restart(setup.client, whole, asked):
        with ledger.exclusive_lock():
            ledger.read_by_client(entry)
    if what == KUBERNETES:
        name = setup.entry.name
        _say(f"pods name it by `runtimeClassName: {name}`, once for each cluster: gpurun install kubernetes --runtime-class")
    return 0


def uninstall(invocation: Invocation) -> int:
    """``uninstall CLIENT``: the inverse, which also takes away names that no client is left to use.

    ``uninstall all`` takes back what `install` of this program has noted, as far as it stands as it was written.  Raises
    :class:`UsageError` for wrong options, :class:`GpurunError` for what could not be taken back.
    """
    if invocation.args[0] != ALL:
        what, setup = _setup(invocation)
        _uninstall(
            invocation, setup, _read_restart(invocation, {setup.client}), own_path() if is_one_file() else setup.entry.binary
        )
        if what == KUBERNETES:
            _say(f"in the cluster: kubectl delete runtimeclass {setup.entry.name}")
        return 0
    if given := [name for name in ("name", "path", "config", "drop-in", "user") if name in invocation.options]:
        raise UsageError(f"uninstall all: --{given[0]} is for one client")
    program = own_path()
    noted = [entry for entry in ledger.entries() if entry.program == program]
    if not noted:
        _say("there is no record of a client that `install` of this program has configured")
        return 0
    asked = _read_restart(invocation, {"docker"} if invocation.flag(restart.RELOAD) else {entry.client for entry in noted})
    failed = []
    for entry in noted:
        try:
            setup = entry.setup()
            if binary_of(setup) not in (entry.binary, None):
                _say(f"{setup.file()}: {entry.name} is another program now, and stays")
                continue
            reload = asked != restart.RELOAD or entry.client == "docker"
            _uninstall(invocation, setup, asked if reload else "", program)
        except (GpurunError, OSError) as e:
            failed.append(str(e) if isinstance(e, GpurunError) else oserror_text(e))
    if failed:
        raise GpurunError("; ".join(failed))
    return 0


def _uninstall(invocation: Invocation, setup: Setup, asked: str, program: str) -> None:
    with ledger.exclusive_lock():
        changes = plan_uninstall(setup)
        names = _names_to_go(setup, changes)
        entry = ledger.new_entry(setup, program, bool(names))
        before = ledger.find(entry)
        again = not changes and bool(asked) and before is not None
        whole = bool(names) or (again and before is not None and before.needs == restart.RESTART)
        if invocation.flag("dry-run"):
            _show(changes)
            for path in names:
                write_stdout(f"# and {path} goes\n")
            _show_restart(setup.client, bool(changes or names or again), whole, asked)
            if problem := check_beforehand(setup, changes):
                raise GpurunError(problem)
            return
        kept = places(setup)
        if asked and changes:
            ledger.note(entry)  # until the client has read it
        _apply(setup, changes)
        for path in {*kept, *[change.path for change in changes]}:
            files.forget_kept(path)
        for path in names:
            os.unlink(path)
            _say(f"{path} is gone")
        if not asked:
            ledger.forget(entry)
    if not changes:
        _say(f"{setup.client} does not know the runtime {setup.entry.name} ({setup.file()})")
    if changes or names or again:
        _restart(setup.client, whole, asked)
    if asked:
        with ledger.exclusive_lock():
            ledger.forget(entry)


def _names_to_go(setup: Setup, changes: tuple[Change, ...]) -> list[str]:
    """The links of makers' names that no runtime of a client is left to need: --gpus works with any of them."""
    if setup.client not in _ASK_FOR_GPUS:
        return []
    # install has linked them to itself, whatever the client calls
    targets = {setup.entry.binary, *([own_path()] if is_one_file() else [])}
    for client in _ASK_FOR_GPUS:
        ours = client == setup.client
        if callers(client, changes if ours else (), targets, setup.path if ours else ""):
            return []
    return [path for target in sorted(targets) for path in links_to(NAMES_DIRECTORY, target)]


def _read_restart(invocation: Invocation, clients: set[str]) -> str:
    """What the client is to be made to do afterwards: ``restart``, ``reload``, or nothing.  Raises :class:`GpurunError`."""
    if invocation.flag(restart.RESTART) and invocation.flag(restart.RELOAD):
        raise UsageError("--restart and --reload exclude each other")
    asked = next((name for name in (restart.RESTART, restart.RELOAD) if invocation.flag(name)), "")
    if not invocation.flag("dry-run"):
        restart.check(clients, asked)
    return asked


def _setup(invocation: Invocation) -> tuple[str, Setup]:
    """What is asked for, and of which client."""
    what = invocation.args[0]
    if what not in (*CLIENTS, KUBERNETES):
        others = f", {KUBERNETES} or {ALL}" if invocation.command == "uninstall" else f" or {KUBERNETES}"
        raise UsageError(f'{invocation.command}: unknown client "{what}", it must be one of {", ".join(CLIENTS)}{others}')
    install = invocation.command == "install"  # what stands there can be taken out, whatever it is
    name = _name(invocation, what) if install else invocation.option("name") or "gpurun"
    binary = invocation.option("path") or own_path()
    if not binary.startswith("/"):
        raise UsageError(f'--path="{binary}" is not an absolute path')
    if not binary.isprintable():  # nor what is not UTF-8
        raise UsageError(f"--path={clean(binary)} has characters that a client's configuration cannot have")
    if install and os.path.exists(binary) and not (os.path.isfile(binary) and os.access(binary, os.X_OK)):
        raise UsageError(f"--path={binary} is not a program: it is no file that can be executed")
    client = client_of_kubernetes() if what == KUBERNETES else what
    entry = RuntimeEntry(name, binary, invocation.flag("default"), invocation.flag("cdi"))
    config = invocation.option("config")
    if invocation.flag("user"):
        if config:
            raise UsageError("--user and --config exclude each other: --user means the usual file of the user")
        if os.geteuid() == 0:
            raise UsageError("--user changes the configuration of the user who runs the command: run it as that user")
        config = user_file(client)
    return what, Setup(client, entry, config, invocation.option("drop-in"))


def _name(invocation: Invocation, what: str) -> str:
    """The name of the runtime.  Raises :class:`UsageError` for one by which containers could not ask for it."""
    name = invocation.option("name") or "gpurun"
    wanted = _HANDLER if what == KUBERNETES else _NAME
    if not wanted.fullmatch(name):
        kind = (
            "a RuntimeClass takes: at most 63 small letters, digits and -"
            if what == KUBERNETES
            else ("a client takes: at most 63 letters, digits, -, _ and .")
        )
        raise UsageError(f'--name="{clean(name)}" is not a name that {kind}, and the first is a letter or a digit')
    return name


def _show(changes: tuple[Change, ...]) -> None:
    colours = os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    write_document("".join([files.difference(change, colours) for change in changes]))


def _apply(setup: Setup, changes: tuple[Change, ...]) -> None:
    """Write *changes*, let the client read them, and say so.  Raises :class:`GpurunError`: then nothing is changed."""
    try:
        apply_all(setup, changes)
    except PermissionError as e:
        own = ", with --user for a client of your own" if os.geteuid() and setup.client in USER_FILES else ""
        raise GpurunError(f"{oserror_text(e)}: run it as root{own}, or with --dry-run to see what it would change") from None
    for change in changes:
        kept = f" (before: {change.path}{files.KEPT})" if os.path.exists(change.path + files.KEPT) else ""
        _say(f"{change.path} is gone" if change.text is None else f"wrote {change.path}{kept}")


def _makers_to_name(client: str) -> tuple[str, ...]:
    """The makers whose names *client* is to find; not those whose program it finds already and that is not gpurun."""
    there = _makers_of_host()
    wanted = [m for m, (_, clients) in SIGNS.items() if client in clients and (m in there if there else m == "nvidia")]
    return tuple([maker for maker in wanted if _is_ours(shutil.which(SIGNS[maker][0], path=SERVICE_PATH))])


def _makers_of_host() -> tuple[str, ...]:
    return tuple([vendor.name for vendor in present(os.environ) if vendor.name in SIGNS])


def _is_ours(found: str | None) -> bool:
    """Whether *found* is a link of ours, of which others may lack after a kill, or nothing."""
    return not found or (is_one_file() and found in links_to(NAMES_DIRECTORY, own_path()))


def _whose_gpus(client: str) -> str:
    """What is to be said where Docker's --gpus means NVIDIA's GPUs on a host that has AMD's; else empty."""
    hook = shutil.which(SIGNS["nvidia"][0], path=SERVICE_PATH)
    if client != "docker" or not hook or "amd" not in _makers_of_host():
        return ""
    more = "" if "nvidia" in _makers_of_host() else f"; without {hook} it would mean AMD's"
    return f"docker's --gpus means NVIDIA's GPUs here; AMD's are asked for by -e AMD_VISIBLE_DEVICES=all{more}"


def _show_restart(client: str, needed: bool, whole: bool, asked: str) -> None:
    """What a dry run says of the restart."""
    command = restart.command(client, whole, asked)
    if not needed or not command:
        return
    done = "would be run" if asked else "is for you to run"
    write_stdout(f"# `{' '.join(command)}` {done}\n")
    for line in (restart.consequences(command), restart.what_reload_misses(command, whole)):
        if line:
            write_stdout(f"# {line}\n")


def _restart(client: str, whole: bool, asked: str) -> bool:
    """Restart or reload the client, or say how; whether it has read all of its configuration."""
    command = restart.command(client, whole, asked)
    if not command:
        return True
    ends, later = restart.consequences(command), restart.what_reload_misses(command, whole)
    if not asked:
        _say(f"{client} reads it after: {' '.join(command)}{f' ({ends})' if ends else ''}")
        return False
    if ends:
        _say(f"{' '.join(command)}: {ends}")
    _say(restart.run(command))
    if later:
        _say(f"{later}: {' '.join(restart.command('docker', True))}")
    return not later


def _say(text: str) -> None:
    write_stderr(text)
