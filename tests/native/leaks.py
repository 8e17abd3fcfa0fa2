"""What a container may leave behind: nothing.  A snapshot of all places before a test, compared with one after it."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from gpurun.linux import bpf
from gpurun.ns.journal_disk import SYSTEM_DIRECTORY, container_key
from tests.native.bed import Bed, below
from tests.native.bundle import Bundle
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime


class Leaks:
    """Taken before a test; :meth:`check` after it raises with everything that is there and was not before."""

    def __init__(self, bed: Bed, runtime: Runtime) -> None:
        self.bed, self.runtime = bed, runtime
        self.bundles: list[Bundle] = []
        self.rootfs_may_change = False
        self.bed_mounts, self.host_mounts = _mounts(bed.mounts()), self._on_the_host()
        self.host_points = {line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        self.programs = self._programs()
        self.null = _owner("/dev/null")
        self.children = self._children()
        self.descriptors = self._descriptors()
        self.ids: list[str] = []

    def watch(self, bundle: Bundle) -> None:
        """The rootfs of *bundle*, as it is when first used, is what it must be in the end."""
        self.bundles.append(bundle)

    def allow_rootfs_changes(self) -> None:
        """For tests whose container writes into its rootfs, or needs mount points that the image lacks."""
        self.rootfs_may_change = True

    def check(self) -> None:
        ids = tuple([i for i in self.runtime.ids if len(i) > 4])  # shorter ones are found everywhere
        self.runtime.cleanup()
        found: list[str] = []
        for _ in range(100):  # a process killed outside our reach takes a moment to be gone
            self.runtime.reap()
            found = self._dynamic(ids)
            if not found:
                break
            time.sleep(0.02)
        if not self.rootfs_may_change:
            for bundle in self.bundles:
                before = bundle.rootfs_before
                after = tree_listing(bundle.rootfs) if before else {}
                changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
                found += [f"rootfs changed at {path}: {before.get(path)} -> {after.get(path)}" for path in changed]
        assert not found, "left behind:\n" + "\n".join(found)

    def _dynamic(self, ids: tuple[str, ...]) -> list[str]:
        bed_mounts, host_mounts = _mounts(self.bed.mounts()), self._on_the_host()
        found = [f"mount in the bed: {m}" for m in bed_mounts - self.bed_mounts]
        found += [f"mount that the bed has lost: {m}" for m in self.bed_mounts - bed_mounts if not self._unmounted_there(m)]
        found += [f"mount on the host: {m}" for m in host_mounts - self.host_mounts]
        if _owner("/dev/null") != self.null:
            found.append(f"the host's /dev/null: {_owner('/dev/null')}, before {self.null}")
        if self._programs() != self.programs:
            found.append(f"device programs above the containers: {self._programs()}, before {self.programs}")
        found += [f"child: {_describe(pid)}" for pid in self._children() - self.children]
        found += [f"process: {_describe(pid)}" for pid in _processes_named(ids)]
        found += [f"descriptor: {d}" for d in self._descriptors() - self.descriptors]
        found += [f"cgroup: {path}" for path in below(self.bed.cgroup(self.bed.subtree)) if path.name in ids]
        ours = {container_key(str(self.runtime.root), name) for name in ids}
        found += [f"journal: {path}" for path in _journals() if path.suffix[1:] in ours]
        if self.runtime.root.exists():
            found += [f"state: {path}" for path in self.runtime.root.iterdir() if path.name in ids]
        return found

    def _on_the_host(self) -> Counter[str]:
        """The mounts there that name our directory: others may mount what they like meanwhile."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return _mounts([line for line in lines if str(self.runtime.directory) in line])

    def _unmounted_there(self, mount: str) -> bool:
        """Whether others took *mount* away: it was one of the host's, outside of our directory, and is none any more."""
        point = mount.split(" ")[1]
        there = {line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        return point in self.host_points and point not in there and str(self.runtime.directory) not in point

    def _programs(self) -> list[tuple[int, ...]]:
        """Device programs on the cgroups above the containers: one there denies devices to the whole machine."""
        found = []
        for path in (self.bed.cgroup_root, self.bed.cgroup(self.bed.subtree), self.bed.callers):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            found.append(bpf.prog_query(fd))
            os.close(fd)
        return found

    def _children(self) -> set[int]:
        return {int(p) for p in Path("/proc/thread-self/children").read_text().split()} - self.bed.own_pids

    @staticmethod
    def _descriptors() -> set[str]:
        """Descriptors of this process that lead to a place where a runtime works; pytest opens others at will."""
        found = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:
                continue  # the descriptor of this very listing
            if "gpurun" in target or target.startswith(("socket:", "pipe:", "/sys/", "/dev/pts")):
                found.add(f"{fd} -> {target}")
        return found


def _journals() -> list[Path]:
    """Those on the disk, of all containers: others come and go while we look."""
    found = []
    for directory in Path(SYSTEM_DIRECTORY).glob("*"):
        try:
            found += [directory / name for name in os.listdir(directory) if "." in name]
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def _owner(path: str) -> tuple[int, int, str]:
    info = os.stat(path)
    return info.st_uid, info.st_gid, oct(info.st_mode)


def _mounts(lines: list[str]) -> Counter[str]:
    """Mounts by root, mount point, options, propagation and type: ids change."""
    found: Counter[str] = Counter()
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        _, _, _, root, point, options, *tags = mount.split(" ")
        found[" ".join([root, point, options, *[tag.split(":")[0] for tag in tags], filesystem.split(" ")[0]])] += 1
    return found


def _text(pid: int | str, name: str) -> str:
    """A file of a process, of which others choose the bytes."""
    return Path(f"/proc/{pid}/{name}").read_text(errors="replace")


def _processes_named(ids: tuple[str, ...]) -> list[int]:
    """Processes whose command line or cgroup names one of *ids*."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                text = _text(name, "cmdline") + _text(name, "cgroup")
            except (FileNotFoundError, ProcessLookupError):
                continue  # gone while we looked
            if any(i in text for i in ids):
                found.append(int(name))
    return found


def _describe(pid: int) -> str:
    try:
        return f"{pid} {_text(pid, 'cmdline')!r} {_text(pid, 'stat')[:60]}"
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid} (gone by now)"
