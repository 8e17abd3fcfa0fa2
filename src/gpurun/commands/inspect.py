"""state, list: looking without touching."""

from __future__ import annotations

import posix

from gpurun.engine import state as store
from gpurun.errors import GpurunError, oserror_text
from gpurun.output import write_stderr, write_stdout

#: How many of the columns of `list --all` are shown, however narrow the terminal is.
_FEWEST = 4
_COLUMNS = ("ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def state(invocation: Invocation) -> int:
    """``state ID``: the state document, two blanks a level; of a container that has stopped, whether memory ran out.

    With ``--format table`` the line that ``list`` has for it.  Raises :class:`GpurunError` for another ``--format``.
    """
    form = invocation.form("json")
    root = invocation.globals.root
    found = store.load(root, invocation.args[0])
    now = store.status(root, found)
    if form == "table":
        from gpurun.commands.tables import table

        write_stdout(table([_COLUMNS, _cells(found, now, _owner(root, found))]))
        return 0
    oom = None
    if now == "stopped" and found.cgroup:
        from gpurun.engine.caller.oom import how_memory_ended

        oom = how_memory_ended(found)
    write_stdout(store.state_json(found, now, indent=2, owner=_owner(root, found), oom=oom) + "\n")
    return 0


def list_containers(invocation: Invocation) -> int:
    """``list``: a table, JSON, or only the ids; with ``--all`` also of the state directories of engines.

    Raises :class:`GpurunError` for another ``--format``, and for a state root that is named and missing.
    """
    root = invocation.globals.root
    if invocation.flag("all"):
        return _list_all(invocation)
    try:
        names = store.listed_ids(root)
    except FileNotFoundError:
        if invocation.globals.root_given:
            raise GpurunError(f"{root}: no such directory") from None
        names = []
    form = invocation.form()
    found = []
    for name in names:
        try:
            loaded = store.load(root, name)
            found.append((loaded, store.status(root, loaded), _owner(root, loaded)))
        except GpurunError as e:
            write_stderr(f"load container {name}: {e}")
        except OSError as e:
            write_stderr(f"load container {name}: {oserror_text(e)}")
    if invocation.flag("quiet"):
        text = "".join([f"{loaded.id}\n" for loaded, _, _ in found])
    elif form == "json":
        items = [store.state_json(loaded, status, owner=owner) for loaded, status, owner in found]
        text = "[" + ",".join(items) + "]\n" if items else "null\n"
    else:
        from gpurun.commands.tables import table

        text = table([_COLUMNS, *[_cells(*one) for one in found]])
    write_stdout(text)
    return 0


def _list_all(invocation: Invocation) -> int:
    from gpurun.cli.terminal import width
    from gpurun.commands.all_containers import all_containers, all_roots, as_json, rows
    from gpurun.commands.tables import fitting_table

    found = all_containers(invocation.globals.root)
    if closed := store.unreadable(all_roots(invocation.globals.root)):
        write_stderr(closed)
    form = invocation.form()
    if invocation.flag("quiet"):
        text = "".join([f"{one.id}\n" for one in found])
    elif form == "json":
        text = as_json(found)
    else:
        text = fitting_table(rows(found), width(), _FEWEST)
    write_stdout(text)
    return 0


def _cells(state: store.State, status: str, owner: str) -> tuple[str, ...]:
    """The line of :data:`_COLUMNS` for a container; one that has stopped has no process."""
    return state.id, "0" if status == "stopped" else str(state.pid), status, state.bundle, state.created, owner


def _owner(root: str, state: store.State) -> str:
    """Whose the container is; an older gpurun has not written it down."""
    return state.owner or store.user_name(posix.stat(f"{root}/{state.id}").st_uid)
