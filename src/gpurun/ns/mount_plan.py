"""What is to be put into the root file system: mounts, device nodes, masks; pure (config.md "Mounts", config-linux.md).

How an entry of ``mounts`` becomes a mount:

1. :mod:`gpurun.ns.options` sorts its options: attributes of the mount, propagation, flags and data of the file system.
   :mod:`gpurun.ns.idmap_option` reads the ranges of ``idmap=``.
2. :func:`plan_mounts` makes a :class:`MountStep` of it, or refuses it.  Nothing has been mounted so far.
3. Sources that the init may not open itself are opened for it by the caller, with the caller's privileges
   (:mod:`gpurun.ns.sources`): in a user namespace and for id maps (:mod:`gpurun.ns.idmap`), each as a detached copy.  Those
   whose turn comes only when an earlier mount is there (:func:`is_late`) are asked for then.
4. :func:`gpurun.ns.rootfs.mount_all`, in the init, goes through the steps in their order.  For each it gets the source
   (``open_tree``) or makes the file system (``fsopen``, and :mod:`gpurun.ns.long_options` for options of more than 255
   bytes), makes the target below the rootfs (:mod:`gpurun.ns.path`), sets the attributes, and only then attaches the mount
   (:mod:`gpurun.ns.mount`).  Propagation and the recursive attributes come last.
5. What must stay writable until its content is made (a tmpfs, /dev) becomes read-only at the end
   (:func:`gpurun.ns.rootfs.make_readonly`).

:mod:`gpurun.ns.pivot` separates the mounts from the host's before the first step, and says how they propagate in the end.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, GpurunError
from gpurun.linux.process import CLONE_NEWNS
from gpurun.ns.namespaces import NamespacePlan, map_lines
from gpurun.ns.options import MountOptions, likely_option, parse_options
from gpurun.oci.config import Config, Device, Mount
from gpurun.paths import clean_path
from gpurun.record import Record


class IdMap(Record):
    """The maps (lines of /proc/pid/uid_map) by which the ids of a mount are seen: of the file system → of the mount."""

    recursive: bool
    uid_map: str
    gid_map: str


class MountStep(Record):
    """One entry of ``mounts``.  *kind* is ``bind`` or the file system type; *source* of a bind is an absolute host path."""

    kind: str
    source: str
    destination: str
    options: MountOptions
    where: str
    label: str = ""  # SELinux context of a new file system
    idmap: IdMap | None = None


class DeviceStep(Record):
    """A device node: *type* is c, b or p; *mode* its permission bits; ids as the container sees them."""

    path: str
    type: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


#: config-linux.md "Default Devices" (console and ptmx come with the terminal and devpts).
DEFAULT_DEVICES = (
    DeviceStep("/dev/null", "c", 1, 3),
    DeviceStep("/dev/zero", "c", 1, 5),
    DeviceStep("/dev/full", "c", 1, 7),
    DeviceStep("/dev/random", "c", 1, 8),
    DeviceStep("/dev/urandom", "c", 1, 9),
    DeviceStep("/dev/tty", "c", 5, 0),
)

#: What may be mounted below /proc: files that lxcfs and its like replace.  runc refuses all others, and so does gpurun.
PROC_TARGETS = frozenset(
    [
        "cpuinfo",
        "diskstats",
        "meminfo",
        "stat",
        "swaps",
        "uptime",
        "loadavg",
        "slabinfo",
        "sys/kernel/ns_last_pid",
        "sys/crypto/fips_enabled",
    ]
)


def join_path(base: str, path: str) -> str:
    """*path* if it is absolute, else below *base*."""
    return path if path.startswith("/") else f"{base.rstrip('/')}/{path}"


#: Options of the cgroup2 superblock (Documentation/admin-guide/cgroup-v2.rst): the host's decide, a container may name them.
_CGROUP2_OPTIONS = frozenset(
    "nsdelegate favordynmods memory_localevents memory_recursiveprot memory_hugetlb_accounting pids_localevents".split()
)


def plan_mounts(config: Config, bundle: str, rootfs: str, namespaces: NamespacePlan) -> tuple[MountStep, ...]:
    """The steps of ``mounts``, in their order; *bundle* is what relative bind sources are relative to.

    A destination below *rootfs* as the host sees it is one of the container, as in runc: some callers write it so.
    """
    label = config.linux.mount_label
    return tuple(
        [_mount_step(mount, f"mounts[{i}]", bundle, rootfs, label, namespaces) for i, mount in enumerate(config.mounts)]
    )


def _mount_step(mount: Mount, where: str, bundle: str, rootfs: str, label: str, namespaces: NamespacePlan) -> MountStep:
    if not mount.destination:
        raise ConfigError(f"{where}.destination", "is missing, a path in the container is needed")
    destination = clean_path(mount.destination)
    if destination.startswith(f"{rootfs}/"):
        destination = destination[len(rootfs) :]
    if destination == "/":
        raise ConfigError(f"{where}.destination", f'"{mount.destination}" is the root itself, which root.path gives')
    options = parse_options(mount.options)
    idmap = _idmap(mount, options, where, namespaces)
    if options.bind or mount.type == "bind":
        if options.data:
            words = ", ".join([f"{word}{likely_option(word)}" for word in options.data])
            raise ConfigError(
                f"{where}.options", f"bind mounts cannot have any filesystem-specific options applied ({words})"
            )
        if not mount.source and not options.remount:
            raise ConfigError(f"{where}.source", "is missing, a bind mount needs one")
        return MountStep("bind", join_path(bundle, mount.source), destination, options, where, idmap=idmap)
    kind = mount.type or "none"
    if kind == "none" and not options.remount:
        raise ConfigError(f"{where}.type", "is missing: name a file system, or add the option bind or rbind")
    if kind == "cgroup2":
        kind = "cgroup"
    if kind == "cgroup":
        unknown = [word for word in options.data if word not in _CGROUP2_OPTIONS]
        if unknown:
            words = ", ".join([f"{word}{likely_option(word, tuple(_CGROUP2_OPTIONS))}" for word in unknown])
            raise ConfigError(f"{where}.options", f"cgroup2 has no option {words}")
    if options.copy_symlink:
        raise ConfigError(f"{where}.options", "copy-symlink is for bind mounts")
    if kind in ("proc", "sysfs") and options.copy_up:
        raise ConfigError(f"{where}.options", "tmpcopyup is for tmpfs")
    if destination.startswith("/proc/"):
        raise ConfigError(f"{where}.destination", f'"{destination}" cannot be mounted because it is inside /proc')
    # Those without take their labels from the policy.
    labelled = kind not in ("proc", "sysfs", "cgroup")
    return MountStep(kind, mount.source, destination, options, where, label if labelled else "")


def _idmap(mount: Mount, options: MountOptions, where: str, namespaces: NamespacePlan) -> IdMap | None:
    """The maps of an id-mapped mount: its own, else those of the container's user namespace."""
    if not (options.idmap or mount.uid_mappings or mount.gid_mappings):
        return None
    if not (options.bind or mount.type == "bind"):
        raise ConfigError(where, "id-mapped mounts are only supported for bind mounts")
    if options.remount:
        raise ConfigError(f"{where}.options", "remount cannot change the id map of a mount")
    if not namespaces.has(CLONE_NEWNS):
        raise ConfigError(where, "id-mapped mounts need a mount namespace")
    recursive = options.idmap == "ridmap"
    if not mount.uid_mappings and not mount.gid_mappings:
        if options.idmap_ranges:
            from gpurun.ns.idmap_option import maps_of_option

            return IdMap(
                recursive, *maps_of_option(options.idmap_ranges, f"{where}.options", namespaces.uids, namespaces.gids)
            )
        if not namespaces.uids:
            raise ConfigError(
                f"{where}.options",
                f"{options.idmap} needs uidMappings and gidMappings here, or a user namespace to take them from",
            )
        return IdMap(recursive, namespaces.uids, namespaces.gids)
    for mappings, name in ((mount.uid_mappings, "uidMappings"), (mount.gid_mappings, "gidMappings")):
        if not mappings:
            raise ConfigError(f"{where}.{name}", "is missing: an id-mapped mount needs both uidMappings and gidMappings")
    uids = map_lines(mount.uid_mappings, f"{where}.uidMappings")
    return IdMap(recursive, uids, map_lines(mount.gid_mappings, f"{where}.gidMappings"))


def failed_mount(step: MountStep, reason: str) -> GpurunError:
    """The error for a mount that cannot be made, in runc's words, which dockerd looks for."""
    return GpurunError(
        f'{step.where}: error mounting "{step.source or step.kind}" to rootfs at "{step.destination}": {reason}'
    )


def is_late(step: MountStep, rootfs: str) -> bool:
    """Whether the source of a bind mount is in the rootfs itself, where an earlier mount may have put something else."""
    return step.kind == "bind" and step.source.startswith(f"{rootfs}/")


def plan_devices(devices: tuple[Device, ...]) -> tuple[DeviceStep, ...]:
    """The default devices and those of ``linux.devices``; an entry of the same path replaces a default one.

    Raises :class:`ConfigError` for a path, a type or numbers that no device can have.
    """
    steps = {d.path: d for d in DEFAULT_DEVICES}
    for i, device in enumerate(devices):
        where = f"linux.devices[{i}]"
        if not device.path.startswith("/"):
            raise ConfigError(f"{where}.path", f'"{device.path}" must be an absolute path')
        kind = {"c": "c", "u": "c", "b": "b", "p": "p"}.get(device.type)
        if kind is None:
            raise ConfigError(f"{where}.type", f'invalid device type "{device.type}", it must be c, u, b or p')
        path = clean_path(device.path)
        if path == "/dev/ptmx":
            continue  # always a link to the container's own devpts
        if kind != "p" and not (device.major < 1 << 12 and device.minor < 1 << 20):
            raise ConfigError(
                where, f"{device.major}:{device.minor} is not a valid device number: the highest is 4095:1048575"
            )
        mode = 0o666 if device.file_mode is None else device.file_mode & 0o7777
        steps[path] = DeviceStep(path, kind, device.major, device.minor, mode, device.uid or 0, device.gid or 0)
    return tuple(steps.values())


def dev_is_bind(mounts: tuple[MountStep, ...]) -> bool:
    """Whether /dev is the host's (or another's) directory, in which gpurun then makes nothing."""
    return any(m.destination == "/dev" and m.kind == "bind" for m in mounts)
