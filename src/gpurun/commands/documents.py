"""spec, features: the documents that gpurun writes about itself."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.output import write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.invocation import Invocation
    from gpurun.oci.features import Built


def spec(invocation: Invocation) -> int:
    """``spec``: write config.json into the bundle; a file that is there is never overwritten.

    Raises :class:`GpurunError` then.
    """
    import json

    from gpurun.linux.files import Fd, write_all
    from gpurun.oci.default_spec import default_spec
    from gpurun.paths import absolute_path

    path = absolute_path(invocation.option("bundle", ".") + "/config.json")
    text = json.dumps(default_spec(invocation.flag("rootless"), posix.geteuid(), posix.getegid()), indent="\t")
    try:
        fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL, 0o666)
    except FileExistsError:
        raise GpurunError("File config.json exists. Remove it first") from None
    try:
        with Fd(fd):
            write_all(fd, f"{text}\n".encode())
    except BaseException:  # ^C too: half a file would be in the way of the next call
        posix.unlink(path)
        raise
    return 0


def features(invocation: Invocation) -> int:
    """``features``: print the features document, as containerd, CRI-O and dockerd read it.

    With ``--format table`` a line for each member.  Raises :class:`GpurunError` for another ``--format``.
    """
    from gpurun.oci.features import features_document

    form, document = invocation.form("json"), features_document(read_build())
    if form == "json":
        write_stdout(dumps(document, 4) + "\n")
    else:
        from gpurun.cli.terminal import write_wrapped

        lines = members(document)
        column = max([len(name) for name, _ in lines]) + 2
        write_wrapped([f"{name.ljust(column)}{value}" for name, value in lines], column)
    return 0


def members(document: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Each member of *document* that is no object, as (JSON path, value in words), in the document's order.  Pure."""
    found: list[tuple[str, str]] = []
    for name, value in document.items():
        where = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            found += members(value, where)
        elif isinstance(value, bool):
            found.append((where, "yes" if value else "no"))
        else:
            found.append((where, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return found


def read_build() -> Built:
    """What this build does, read from the tables that do it."""
    from gpurun.engine.plan.scheduling import MEMORY_POLICIES, MEMORY_POLICY_FLAGS
    from gpurun.ns.namespaces import NAMESPACES
    from gpurun.ns.options import option_names
    from gpurun.oci.config import HOOK_NAMES
    from gpurun.oci.features import Built
    from gpurun.security.capabilities import NAMES

    seccomp, libseccomp = _seccomp()
    return Built(
        hooks=HOOK_NAMES,
        mount_options=option_names(),
        namespaces=tuple(NAMESPACES),
        capabilities=tuple(NAMES),
        seccomp=seccomp,
        libseccomp=libseccomp,
        cgroup_systemd=True,
        apparmor=True,
        selinux=True,
        intel_rdt=True,
        memory_policies=tuple(MEMORY_POLICIES),
        memory_policy_flags=tuple(MEMORY_POLICY_FLAGS),
        idmap=True,
        net_devices=True,
        checkpoint=_has_criu(),
    )


def _has_criu() -> bool:
    from gpurun.criu.swrk import find_criu

    try:
        find_criu()
    except GpurunError:
        return False
    return True


def _seccomp() -> tuple[dict[str, Any] | None, str]:
    """The member of the document and libseccomp's version; (None, "") where the library is not installed."""
    from gpurun.engine.caller.seccomp import supported_flags
    from gpurun.linux.libseccomp import Library, find
    from gpurun.security.seccomp import ACTIONS, ARCHITECTURES, FLAGS, OPERATORS

    try:
        version = Library(find()[0]).version()
    except OSError:
        return None, ""
    tables = {"actions": ACTIONS, "operators": OPERATORS, "archs": ARCHITECTURES, "knownFlags": FLAGS}
    member = {name: sorted(table) for name, table in tables.items()}
    return {**member, "supportedFlags": sorted(supported_flags())}, version
