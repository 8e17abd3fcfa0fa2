"""state, list: looking without touching."""

from __future__ import annotations

import posix

from gpurun.engine import state as store
from gpurun.errors import GpurunError, oserror_text
from gpurun.output import one_line, write_stderr, write_stdout

#: How many of the columns of `list --all` are shown, however narrow the terminal is.
_FEWEST = 4
_COLUMNS = ("ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
        text = table([_COLUMNS, *[_cells(*one) for one in found]])
    write_stdout(text)
    return 0


def _list_all(invocation: Invocation) -> int:
    from gpurun.cli.terminal import width
    from gpurun.commands.all_containers import all_containers, all_roots, as_json, rows

    found = all_containers(invocation.globals.root)
    if closed := store.unreadable(all_roots(invocation.globals.root)):
        write_stderr(closed)
    form = invocation.form()
    if invocation.flag("quiet"):
        text = "".join([f"{one.id}\n" for one in found])
    elif form == "json":
        text = as_json(found)
    else:
        lines, columns = rows(found), width()
        while columns and len(lines[0]) > _FEWEST and max(map(len, table(lines, 0).splitlines())) > columns:
            lines = [line[:-1] for line in lines]
        text = table(lines, 0)
    write_stdout(text)
    return 0


def table(rows: Sequence[tuple[str, ...]], least: int = 12) -> str:
    """Columns at least *least* wide and 3 apart, as runc prints them; what a terminal would obey is escaped."""
    rows = [tuple([one_line(cell) for cell in row]) for row in rows]
    widths = [max(least, *[len(row[i]) + 3 for row in rows]) for i in range(len(rows[0]))]
    lines = ["".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _cells(state: store.State, status: str, owner: str) -> tuple[str, ...]:
    """The line of :data:`_COLUMNS` for a container; one that has stopped has no process."""
    return state.id, "0" if status == "stopped" else str(state.pid), status, state.bundle, state.created, owner


def _owner(root: str, state: store.State) -> str:
    """Whose the container is; an older gpurun has not written it down."""
    return state.owner or store.user_name(posix.stat(f"{root}/{state.id}").st_uid)
