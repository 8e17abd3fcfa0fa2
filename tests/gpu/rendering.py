"""Edits as text, and plans written down in ``golden/`` (``UPDATE_GOLDEN=1`` writes them anew)."""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.cdi.edits import ContainerEdits
from tests.golden import same_as_golden
from tests.simdriver import MULTIARCH, SimulatedDriver

GOLDEN = Path(__file__).parent / "golden"
READONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def rendered(made: ContainerEdits, sim: SimulatedDriver) -> str:
    """The edits as text, a line each, without what differs between machines."""
    lines = [
        f"node {n.path} {n.type} {n.major}:{n.minor} {n.file_mode:o} {n.uid}:{n.gid} {n.permissions}  # {n.reason}"
        for n in made.device_nodes
    ]
    for m in made.mounts:
        source = "" if m.host_path == f"{sim.path}{m.container_path}" else f" from {m.host_path}"
        options = "readonly" if m.options == READONLY else ",".join(m.options)
        lines.append(f"mount {m.kind} {m.container_path}{source} {options}  # {m.reason}")
    lines += [f"link {link.path} -> {link.target}  # {link.reason}" for link in made.links]
    lines += [f"cache {c.soname} {c.path}" for c in made.ldcache]
    for tree in made.proc_trees:
        lines.append(f"tree {tree.path}  # {tree.reason}")
        lines += [f"  file {f.path} {f.mode:o} {_size(f.content)} bytes" for f in tree.files]
        lines += [f"  bind {b.container_path} from {b.host_path} {','.join(b.options)}" for b in tree.binds]
    lines += [f"image file {f.path} {f.mode:o}: {f.content.decode()!r}" for f in made.image_files]
    lines += [f"class {c.type} {c.major}:* {c.permissions}  # {c.reason}" for c in made.device_classes]
    lines += [f"warning {w}" for w in made.warnings]
    lines += [f"gid {gid}" for gid in made.additional_gids] + [f"env {e}" for e in made.env]
    text = "\n".join(lines) + "\n"
    return text.replace(str(sim.path), "$ROOT").replace(MULTIARCH[os.uname().machine], "$MULTIARCH")


def _size(content: bytes) -> int:
    """Bytes of *content* as it is on x86_64: the driver's version names the machine."""
    return len(content.replace(os.uname().machine.encode(), b"x86_64"))


def same_plan(name: str, text: str) -> None:
    """Fails where *text* is not the plan that ``golden/`` keeps under *name*."""
    same_as_golden(GOLDEN / f"{name}.txt", text)
