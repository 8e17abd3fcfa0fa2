"""explain: what create would do with a bundle, or has done for a container; what tells two bundles apart."""

from __future__ import annotations

import posix

from gpurun.cli.terminal import colour_text, fold, width, write_wrapped
from gpurun.commands.explain_gpus import accelerators_of_container, driver_of_container, gpu_lines, gpus_of_container
from gpurun.decimals import decimal
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.caller.bundle import CreateOptions, plan_bundle, plan_saved
from gpurun.errors import UsageError
from gpurun.formats.jsontext import dumps
from gpurun.library.explanation import explain_plan, plain_plan, sections
from gpurun.library.host_checks import host_problems
from gpurun.library.summary import summary
from gpurun.linux.files import read_file
from gpurun.output import one_line, write_document, write_stdout
from gpurun.paths import absolute_path
from gpurun.record import to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.engine.plan.container import Plan
    from gpurun.invocation import Invocation

_NAME = 12  # columns of a name in the summary


def explain(invocation: Invocation) -> int:
    """``explain [BUNDLE]``, ``--running ID``, ``--diff BUNDLE BUNDLE``: for people, or as JSON; changes nothing.

    The exit code is 1 when create would fail, or when the bundles differ.  Raises :class:`UsageError` for another number of
    bundles.
    """
    form, running, diff = invocation.form(), invocation.option("running"), invocation.flag("diff")
    if diff and (len(invocation.args) != 2 or running):
        raise UsageError("explain --diff: two bundles are needed: explain --diff BUNDLE BUNDLE")
    if len(invocation.args) > (2 if diff else 0 if running else 1):
        raise UsageError("explain: one bundle, or --diff with two, or --running with the id of a container")
    if diff:
        one, other = [_plan_for(invocation, bundle) for bundle in invocation.args]
        return _diff(one, other, form)
    if running:
        return _running(invocation, running, form)
    plan = _plan_for(invocation, invocation.args[0] if invocation.args else invocation.option("bundle", "."))
    problems = host_problems(plan)
    if form == "json":
        write_stdout(dumps({**plain_plan(plan), "problems": list(problems)}, 2) + "\n")
    else:
        write_wrapped(_lines(plan, [f"create would fail: {problem}" for problem in problems]))
    return 1 if problems else 0


def _plan_for(invocation: Invocation, bundle: str) -> Plan:
    options = CreateOptions(
        "ID",
        invocation.globals.root,
        absolute_path(bundle),
        config=invocation.option("config"),
        cgroup_manager=invocation.globals.driver,
        rootless=invocation.globals.rootless,
    )
    return plan_bundle(options)[1]


def _lines(plan: Plan, first: list[str], gpus: str = "") -> list[str]:
    """The summary and the explanation; *gpus* in the place of what the plan says of them."""
    found = summary(plan)
    lines = [f"{name.ljust(_NAME)}{text}" for name, text in (found | ({"GPUs": gpus} if gpus else {})).items()]
    return [*first, *lines, "", *explain_plan(plan)]


def _running(invocation: Invocation, container_id: str, form: str) -> int:
    """What create has done for the container, and what has changed of it since."""
    root = invocation.globals.root
    state = store.load(root, container_id)
    now = store.status(root, state)
    options = CreateOptions(
        container_id, root, state.bundle, cgroup_manager="systemd" if state.unit else "cgroupfs", rootless="auto"
    )
    plan = plan_saved(options, read_file(f"{root}/{container_id}/config.json", store.MAX_SAVED_CONFIG))
    alive = now != "stopped"
    changed = _list_changes(plan, state) if alive else []
    gpus = gpus_of_container(root, state, alive)
    env = tuple([f"{name}={value}" for name, value in plan.init.process.env])
    gpus += accelerators_of_container(env, state.pid if alive else 0)
    if form == "json":
        more = {"status": now, "pid": state.pid, "changed": changed, "gpus": [to_plain(gpu) for gpu in gpus]}
        write_stdout(dumps({**plain_plan(plan), **more}, 2) + "\n")
        return 0
    process = f", process {state.pid}" if now != "stopped" else ""
    first = [f"container {container_id}: {now}{process}, created {state.created or 'just now'}"]
    first += [f"since changed: {text}" for text in changed]
    write_wrapped(_lines(plan, first, "; ".join([f"{gpu.shown}, {gpu.node}" for gpu in gpus]) or "none"))
    if gpus:
        variables, groups = kept.load_edits(root, container_id)
        driver = driver_of_container(state.pid) if alive else ""
        lines = [*gpu_lines(gpus), *([f"libraries of the driver {driver}"] if driver else [])]
        lines += [f"env {variable}" for variable in variables] + [f"group {gid}" for gid in groups]
        write_wrapped(["GPU: what the container has", *[f"  {line}" for line in lines]])
    return 0


def _list_changes(plan: Plan, state: store.State) -> list[str]:
    """The limits that the cgroup has now, where they are not those of the config; rounded values are the same."""
    found = []
    for write in plan.cgroup.writes:
        try:
            now = read_file(f"{state.cgroup}/{write.file}", 1 << 16).decode("utf-8", "replace").strip()
        except OSError:
            continue
        page = posix.sysconf("SC_PAGESIZE")
        number = decimal(write.value) if write.file.startswith("memory.") else None
        asked = "" if number is None else str(number // page * page)
        if now not in (write.value, asked) and write.value.split() != now.split() and "\n" not in now:
            found.append(f"{write.file} is {now}, was to be {write.value}")
    return found


def _diff(one: Plan, other: Plan, form: str) -> int:
    """Section by section, what only one of both has; 1 when they differ.

    As JSON: ``bundles``, and ``sections`` with ``title``, ``first`` and ``second`` (what only that bundle has; both are
    empty where the same is done in another order).
    """
    found = differences(sections(one), sections(other))
    if form == "json":
        listed = [{"title": title, "first": first, "second": second} for title, first, second in found]
        write_stdout(dumps({"bundles": [one.bundle, other.bundle], "sections": listed}, 2) + "\n")
        return 1 if found else 0
    if not found:
        write_stdout("the same is done for both\n")
        return 0
    lines = [f"- {one.bundle}", f"+ {other.bundle}"]
    for title, first, second in found:
        lines += [title, *[f"  - {item}" for item in first], *[f"  + {item}" for item in second]]
        lines += [] if first or second else ["  (the same, in another order)"]
    text = fold("".join([f"{one_line(line)}\n" for line in lines]), width())
    colours = {"-": "31", "+": "32"}
    write_document("".join([colour_text(line, colours.get(line.strip()[:1], "")) + "\n" for line in text.splitlines()]))
    return 1


def differences(ours: Mapping[str, list[str]], theirs: Mapping[str, list[str]]) -> list[tuple[str, list[str], list[str]]]:
    """The sections that are not the same, as (title, what only *ours* has, what only *theirs* has).  Pure."""
    found = []
    for number, title in enumerate(dict.fromkeys([*ours, *theirs])):
        if number == 0 or title.startswith("container ID from bundle"):
            continue  # whose they are
        before, after = ours.get(title, []), theirs.get(title, [])
        if before != after:
            gone, come = [item for item in before if item not in after], [item for item in after if item not in before]
            found.append((title, gone, come))
    return found
