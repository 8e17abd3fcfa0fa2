"""ContainerEdits: the one vocabulary for what a device brings into a container, and it is CDI's.

The NVIDIA discovery yields edits, a CDI file yields edits; the engine merges their device rules, environment and groups
into the plan, and :mod:`gpurun.hook.apply` puts the rest into the container at the prestart point.  Every edit says in
*reason* what asked for it, which is what ``gpurun explain`` shows.

Specification: CDI 1.1.0, ``containerEdits``.  Links and the library cache are hooks in a CDI file
(``create-symlinks``, ``update-ldcache``); here they are data, because gpurun does them itself and runs no program.
"""

from __future__ import annotations

from gpurun.record import Record


class DeviceNode(Record):
    """A device node: *path* in the container, *host_path* on the host (the same when empty)."""

    path: str
    host_path: str
    type: str  # "c", "b" or "p"
    major: int
    minor: int
    file_mode: int = 0o666
    uid: int = 0
    gid: int = 0
    permissions: str = "rw"  # subset of rwm: what the device cgroup is to allow; "" for nothing
    reason: str = ""


class DeviceClass(Record):
    """All devices of one *major*, to which the device cgroup is to allow access: no node is made for it."""

    type: str
    major: int
    permissions: str = "rw"
    reason: str = ""


class EditMount(Record):
    """A bind mount of *host_path* (already resolved on the host, never from the image) at *container_path*.

    *options* are OCI mount options; *kind* is what the target must be: ``file`` or ``dir``.
    """

    host_path: str
    container_path: str
    options: tuple[str, ...]
    kind: str = "file"
    reason: str = ""


class Link(Record):
    """A symbolic link at *path* in the container with the text *target*."""

    path: str
    target: str
    reason: str = ""


class CacheEntry(Record):
    """A library for the container's ld.so.cache: its SONAME, its path in the container, the cache's flags word."""

    soname: str
    path: str
    flags: int


class FileEdit(Record):
    """A small file gpurun itself writes at *path*: on a private tmpfs, or (``image_files``) into the image for a while."""

    path: str
    content: bytes
    mode: int = 0o444
    reason: str = ""


class ProcTree(Record):
    """A tmpfs at *path* that hides a host tree, holding *files* and read-only binds of the host's *binds*, at any depth."""

    path: str
    files: tuple[FileEdit, ...]
    binds: tuple[EditMount, ...]
    reason: str = ""


class Chmod(Record):
    """The permissions of a directory of the container's own /dev; *mode* as in chmod(2)."""

    path: str
    mode: int
    reason: str = ""


class ForwardCompat(Record):
    """Whether newer CUDA libraries of the image in *directory* may stand in for the driver's: decided when it is seen.

    *driver_version* is the host's (``550.163.01``).
    """

    directory: str
    driver_version: str
    reason: str = ""


class Hook(Record):
    """An OCI hook of a CDI file: *stage* is the OCI name (``createContainer``); *timeout* in seconds, 0 for none."""

    stage: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class ContainerEdits(Record):
    """All that a request for devices adds to one container, in the order in which it is to be applied."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    mounts: tuple[EditMount, ...] = ()
    links: tuple[Link, ...] = ()
    ldcache: tuple[CacheEntry, ...] = ()
    image_files: tuple[FileEdit, ...] = ()  # where their directory is there and can be written; delete takes them away
    forward_compat: ForwardCompat | None = None
    chmods: tuple[Chmod, ...] = ()
    proc_trees: tuple[ProcTree, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()  # of each device that has one, for placement near to it; -1 where the host does not say
