"""create's side of shares of a GPU: what the site says, the share noted beside the leases, the MPS daemon that serves it.

Imported only for a container that asks for a share.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits, MemoryLimit
from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT, dmem_capacity, find_tree
from gpurun.engine.gpus.leases import StoredLease, open_store, requester_of, site_policy
from gpurun.engine.site_config import read_shares, site_path
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu import vendors
from gpurun.gpu.leases import shares
from gpurun.gpu.leases.allocator import Requester
from gpurun.gpu.leases.limits import keeper_of, kernel_limits
from gpurun.gpu.nvidia.edits.mps import with_host_share, with_share
from gpurun.gpu.nvidia.host.nvml import find_nvml
from gpurun.gpu.nvidia.memory_limits import NOT_KNOWN
from gpurun.gpu.nvidia.mps.host import has_host_shm, host_daemon
from gpurun.gpu.nvidia.mps.service import Service, ensure, service_of
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.gpu.request.share import Share, read_share
from gpurun.linux import procfs
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.leases.limits import Keeper
    from gpurun.gpu.leases.policy import SharePolicy
    from gpurun.gpu.leases.store import Store
    from gpurun.gpu.nvidia.request.settings import Settings
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.request.injected import Injected
    from gpurun.oci.config import Config


class Sharing:
    """A container that asks for a share, being planned; *mounts* are the (source, destination) of its config's.

    Without *note* nothing is noted and nothing started: it is only looked.  What is noted is added to *own_leases*.
    """

    def __init__(
        self,
        share: Share,
        requester: Requester,
        own_env: Mapping[str, str],
        mounts: tuple[tuple[str, str], ...] = (),
        note: bool = False,
    ) -> None:
        self.share = share
        self.requester, self.own_env, self.mounts, self.note = requester, own_env, mounts, note
        self.own_leases: list[StoredLease] = []
        self.service: Service | None = None
        self._given: shares.GivenShare | None = None

    def free(self, request: FreeRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """A GPU that has room for the share, for a *request* of free ones.  Raises :class:`GpurunError`.

        Returns (its name, no warnings).
        """
        self._policy(self.share)
        store = open_store(self.own_env)
        requester = replace(self.requester, source=request.source)
        self._given = shares.share_free(request, self.share, self.own_env, site_policy(), store, requester, self.note)
        self._grant(self._given, store.path)
        return (self._given.unit.name,), ()

    def give(self, share: Share, made: ContainerEdits, injected: Injected | None) -> ContainerEdits:
        """*made* with what the container takes to have *share* of its GPU.  Raises :class:`GpurunError`."""
        policy, settings = self._policy(share), site_settings(self.own_env)
        store = open_store(self.own_env)
        given = self._given or self._of_named(share, made, injected, store)
        if not self.note:
            made = _with_warning(made, shares.preview_text(share, given, store.leases()))
        made = _with_warning(made, given.warning)
        if not vendors.find_vendor(given.unit.vendor).limits:
            return self._limited_by_kernel(share, given, made)
        keeper = _keeper(share, given, policy)
        if not self.note and share.memory:
            by = "the driver (NVML)" if keeper.nvml else f"MPS, because {keeper.why_not}"
            made = _with_warning(made, f"{share.source}: the memory would be limited by {by}")
        if keeper.nvml:
            library = find_nvml(roots_of(self.own_env, settings))
            limit = MemoryLimit(given.unit.name, share.memory, share.memory, library, share.source)
            made = replace(made, memory_limits=(limit,))
        return self._served_by_mps(share, given, made, store.path, settings, policy.shm) if keeper.mps else made

    def _of_named(self, share: Share, made: ContainerEdits, injected: Injected | None, store: Store) -> shares.GivenShare:
        """*share* of the GPU whose nodes the container has by *made* or *injected*."""
        numbers = [(node.major, node.minor) for node in made.device_nodes]
        numbers += [(node.major, node.minor) for node in injected.devices] if injected is not None else []
        policy = site_policy()
        given = shares.share_named(frozenset(numbers), share, self.own_env, policy, store, self.requester, self.note)
        self._grant(given, store.path)
        return given

    def _served_by_mps(
        self, share: Share, given: shares.GivenShare, made: ContainerEdits, store: str, settings: Settings, shm: int
    ) -> ContainerEdits:
        """*made* as a client of the host's MPS daemon, or else of one that :meth:`start` starts; *shm* in bytes."""
        pipes = host_daemon(made)
        if pipes is not None:
            if not has_host_shm(self.mounts):
                raise GpuError(
                    f"{share.source}: the MPS daemon of this host ({pipes.host_path}) would serve the share, but the "
                    "container has its own /dev/shm: use the host's (docker run --ipc=host), or stop that daemon, and "
                    "gpurun starts one for the GPU"
                )
            return with_host_share(made, pipes, share)
        if settings.driver_root != "/":
            raise GpuError(
                f"{share.source}: gpurun does not start an MPS daemon for a driver below another root "
                f"({settings.driver_root}): "
                "start one on the host"
            )
        self.service = service_of(given.unit.key, given.unit.name, store, self.own_env, shm)
        return with_share(made, self.service.pipes, self.service.shm, share)

    def _limited_by_kernel(self, share: Share, given: shares.GivenShare, made: ContainerEdits) -> ContainerEdits:
        """*made* with limits of a GPU whose maker's driver sets none itself, and leaves them to cgroup v2's dmem."""
        sysroot = self.own_env.get("GPURUN_SYSROOT", "").rstrip("/")
        capacity = dmem_capacity(f"{sysroot}{UNIFIED_MOUNTPOINT}" if sysroot else find_tree().root)
        found = kernel_limits(share, given.unit.label, given.unit.gpu_key, capacity)
        limits = tuple([MemoryLimit(region, size, where=share.source) for region, size in found])
        if not self.note:
            made = _with_warning(made, f"{share.source}: the memory would be limited by the kernel (dmem.max)")
        return replace(made, memory_limits=limits)

    def start(self) -> None:
        """Have the daemon answer that the edits name the directories of.  Raises :class:`GpuError`."""
        if self.service is not None:
            ensure(self.service)

    def _grant(self, given: shares.GivenShare, path: str) -> None:
        if given.lease is not None:
            self.own_leases.append(StoredLease(given.lease, path))

    def _policy(self, share: Share) -> SharePolicy:
        """What the site says of shares; raises :class:`ConfigError` where it says no, or where none can be given."""
        path = site_path(posix.environ)
        policy = read_shares(path)
        if policy.allow == "none" or (policy.allow == "annotations" and share.by_variable):
            who = " to variables: ask by annotation" if policy.allow == "annotations" else ""
            raise ConfigError(share.source, f"this site does not allow shares of a GPU{who} ({path}: shares.allow)")
        if posix.geteuid() != 0 or procfs.in_user_namespace():
            text = "a share of a GPU needs root of the host, which starts MPS daemons and counts the shares of all users"
            raise ConfigError(share.source, text)
        return policy


def _keeper(share: Share, given: shares.GivenShare, policy: SharePolicy) -> Keeper:
    """Who keeps *share* of the GPU that is *given*, as the site's *policy* wants it; raises as :func:`keeper_of`."""
    root = find_tree().root
    obstacles = (
        "it is a MIG device, which has memory of its own" if given.unit.parent else "",
        "" if given.limits else NOT_KNOWN,
        "" if root == UNIFIED_MOUNTPOINT else f"this host has its cgroup v2 at {root} and not at {UNIFIED_MOUNTPOINT}",
    )
    return keeper_of(share.memory, share.threads, policy.memory, obstacles, share.source)


def _with_warning(made: ContainerEdits, text: str) -> ContainerEdits:
    """*made* with a warning; as it is where *text* is empty."""
    return replace(made, warnings=(*made.warnings, text)) if text else made


def sharing_of(config: Config, container_id: str, root: str, own_env: Mapping[str, str], note: bool) -> Sharing | None:
    """What gives the container of *config* its share; ``None`` where it asks for none.  Raises :class:`ConfigError`."""
    share = read_share(config.process.env, config.annotations)
    if share is None:
        return None
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    return Sharing(share, requester_of(config, container_id, root, share.source), own_env, mounts, note)


def preview_sharing(
    env: tuple[str, ...], annotations: Mapping[str, str], mounts: tuple[tuple[str, str], ...], own_env: Mapping[str, str]
) -> Sharing | None:
    """As :func:`sharing_of`, for what would be given now to a container with these words."""
    share = read_share(env, annotations)
    return Sharing(share, Requester("", "", user=posix.geteuid(), source=share.source), own_env, mounts) if share else None
