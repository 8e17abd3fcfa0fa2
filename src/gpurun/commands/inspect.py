"""state, list, explain: looking without touching."""

from __future__ import annotations

import posix
import sys

from gpurun.engine import state as store
from gpurun.errors import GpurunError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurun.invocation import Invocation


def state(invocation: Invocation) -> int:
    """``state ID``: the state document, two blanks a level; of a container that has stopped, whether memory ran out."""
    root = invocation.globals.root
    found = store.load(root, invocation.args[0])
    now = store.status(root, found)
    oom = None
    if now == "stopped" and found.cgroup:
        from gpurun.engine.oom import how_memory_ended

        oom = how_memory_ended(found)
    sys.stdout.write(store.state_json(found, now, indent=2, oom=oom) + "\n")
    return 0


def list_containers(invocation: Invocation) -> int:
    """``list``: a table, JSON, or only the ids."""
    root = invocation.globals.root
    try:
        names = sorted([name for name in posix.listdir(root) if name[0] != "."])
    except FileNotFoundError:
        if invocation.globals.root_given:
            raise GpurunError(f"{root}: no such directory") from None
        names = []
    form = invocation.option("format", "table")
    if form not in ("table", "json"):
        raise GpurunError(f'invalid format option "{form}", use table or json')
    found = []
    for name in names:
        try:
            loaded = store.load(root, name)
            found.append((loaded, store.status(root, loaded), posix.stat(f"{root}/{name}").st_uid))
        except GpurunError as e:
            sys.stderr.write(f"load container {name}: {e}\n")
    if invocation.flag("quiet"):
        text = "".join([f"{loaded.id}\n" for loaded, _, _ in found])
    elif form == "json":
        items = [store.state_json(loaded, status, owner=_owner(uid)) for loaded, status, uid in found]
        text = "[" + ",".join(items) + "]\n" if items else "null\n"
    else:
        rows = [("ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER")]
        for loaded, status, uid in found:
            pid = "0" if status == "stopped" else str(loaded.pid)
            rows.append((loaded.id, pid, status, loaded.bundle, loaded.created, _owner(uid)))
        text = table(rows)
    sys.stdout.write(text)
    return 0


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns at least 12 wide and 3 apart, as runc prints them."""
    widths = [max(12, *[len(row[i]) + 3 for row in rows]) for i in range(len(rows[0]))]
    lines = ["".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _owner(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def explain(invocation: Invocation) -> int:
    """``explain [BUNDLE]``: the plan, for people or as JSON; needs no root, changes nothing."""
    from gpurun.commands.explanation import explain_plan
    from gpurun.engine.create import CreateOptions, plan_bundle
    from gpurun.jsontext import dumps
    from gpurun.paths import absolute_path
    from gpurun.record import to_plain

    bundle = invocation.args[0] if invocation.args else invocation.option("bundle", ".")
    options = CreateOptions(
        "ID",
        invocation.globals.root,
        absolute_path(bundle),
        config=invocation.option("config"),
        cgroup_manager=invocation.globals.driver,
        rootless=invocation.globals.rootless,
    )
    plan = plan_bundle(options)[1]
    sys.stdout.write(dumps(to_plain(plan), 2) + "\n" if invocation.flag("json") else explain_plan(plan))
    return 0
