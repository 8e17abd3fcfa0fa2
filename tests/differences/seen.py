"""What a process has seen, made comparable: what differs each time for every runtime gets the same name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.native.runtime import Container

Seen = dict[str, str]
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")


class Names:
    """What of one container is named otherwise each time: paths, ids, namespaces, peer groups of mounts."""

    def __init__(self, container: Container) -> None:
        runtime = container.runtime
        self.texts = {
            str(container.bundle.directory): "BUNDLE",
            str(container.files): "FILES",
            str(runtime.directory): "DIRECTORY",
            runtime.bed.subtree: "/SUBTREE",
            container.id: "ID",
        }
        self.host = {name: Path(f"/proc/self/ns/{name}").readlink().name for name in NAMESPACES}
        self.host["mnt"] = Path(f"/proc/{next(iter(runtime.bed.own_pids))}/ns/mnt").readlink().name
        self.first = {name: container.proc(f"ns/{name}").readlink().name for name in NAMESPACES}
        self.peers = {tag for line in runtime.bed.mounts() for tag in re.findall(r" (?:shared|master):(\d+)", line)}

    def __call__(self, text: str) -> str:
        for found, name in self.texts.items():
            text = text.replace(found, name)
        return text

    def namespace(self, name: str, value: str, first: bool) -> str:
        name = name.removesuffix("_for_children")
        if value == self.host[name]:
            return "the host's"
        return "its own" if first or value != self.first[name] else "the container's"

    def tag(self, tag: str) -> str:
        kind, _, number = tag.partition(":")
        return f"{kind} with the host" if number in self.peers else kind


def seen(text: str, names: Names, first: bool) -> Seen:
    """The lines of the probe by their keys; mounts by their mount points, with their order as one more."""
    assert text.rstrip().endswith("\nend") or "\nend\n" in text.replace("\r", ""), text[-500:]
    found: Seen = {}
    mounts: list[str] = []
    for line in text.replace("\r", "").splitlines():
        key, _, value = line.partition(" = ")
        if key.startswith("mountinfo "):
            mounts.append(value)
        elif key.startswith("namespace "):
            found[key] = names.namespace(key.removeprefix("namespace "), value, first)
        elif key.startswith("keyring "):
            own = re.sub(
                r"(_ses\.[\w.-]+)\.[0-9a-f]{32}$", r"\1", re.sub(r";[0-9a-f]+;", ";", value)
            )  # gpurun's has a secret
            found[key] = names(own) if "_ses" in value else value
        elif key.startswith("descriptor "):
            found[key] = names(re.sub(r"(pipe|socket):\[\d+\]", r"\1", re.sub(r"/FILES/\w+|/io/\w+", "", value)))
        elif key == "file /proc/self/cgroup":  # of version 2 alone: the others are the host's, and change meanwhile
            found[key] = names("".join(line for line in value.split("\\n") if line.startswith("0::")))
        elif key != "end":
            found[key] = names(value)
    found |= _mounts(mounts, names)
    return found


def _mounts(lines: list[str], names: Names) -> Seen:
    points = {line.split(" ")[0]: line.split(" ")[4] for line in lines}
    found: Seen = {}
    count: Counter[str] = Counter()
    order = []
    for line in lines:
        mount, _, filesystem = names(line).partition(" - ")
        _, parent, device, root, point, options, *tags = mount.split(" ")
        count[point] += 1
        key = f"mount {point}" + (f" #{count[point]}" if count[point] > 1 else "")
        kind, source, superoptions = filesystem.split(" ", 2)
        shown = " ".join(sorted(map(names.tag, tags)))
        # an anonymous file system has another number each time, and its options are the host's where it is the host's
        number = "" if device.startswith("0:") else device
        within = points.get(parent, "outside")
        root = re.sub(r"/(net|ipc|uts|pid|mnt|user|cgroup|time):\[\d+\]", r"/\1", root)
        found[key] = f"{root} {options} [{shown}] {kind} {source} {superoptions} in {within} {number}".rstrip()
        order.append(point)
    found["mounts in order"] = " ".join(order)
    return found


def on_the_host(container: Container, names: Names) -> Seen:
    """What the host sees of a container that waits to be started."""
    state = container.state()
    found = {f"state {key}": names(str(state[key])) for key in sorted(state) if key not in ("created", "pid", "owner")}
    status = container.proc("status").read_text().splitlines()
    words = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    for key in ("Threads", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups", "CapInh", "CapBnd", "CapAmb", "Umask"):
        found[f"waiting {key}"] = words[key].strip()
    found["waiting oom score"] = container.proc("oom_score_adj").read_text().strip()
    found["waiting directory"] = names(str(container.proc("cwd").readlink()))
    found["waiting processes"] = str(
        len((container.runtime.bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split())
    )
    # Besides the streams: what of the host a process that looks into the init could reach, and what it could write to.
    opened = [
        str(fd.readlink()) for fd in sorted(container.proc("fd").iterdir(), key=lambda p: int(p.name)) if int(fd.name) > 2
    ]
    found["waiting descriptors"] = " ".join(sorted(Counter(re.sub(r":\[\d+\]", "", names(name)) for name in opened)))
    maps = [line.split(maxsplit=5) for line in container.proc("maps").read_text().splitlines()]
    shared = {names(fields[5]) for fields in maps if fields[1].endswith("s") and "w" in fields[1] and len(fields) > 5}
    found["waiting maps that are shared and writable"] = " ".join(sorted(shared))
    inside = {fields[5] for fields in maps if len(fields) > 5 and str(container.bundle.directory) in fields[5]}
    found["waiting maps of the image"] = " ".join(sorted(map(names, inside)))
    return found
