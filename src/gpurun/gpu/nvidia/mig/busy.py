"""Who uses the GPUs that are to be divided anew: leases, containers of any engine, processes.  And a lease meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpurun.errors import GpuError
from gpurun.gpu.leases.lease import Leased
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.gpu.leases.survey import holders, survey
from gpurun.gpu.nvidia.host.roots import bus_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.leases.policy import LeasePolicy
    from gpurun.gpu.nvidia.mig.plan import MigChange

_NAME = "gpurun gpu mig apply"


@contextmanager
def hold_gpus(
    changes: tuple[MigChange, ...], own_env: Mapping[str, str], policy: LeasePolicy, store: Store
) -> Iterator[None]:
    """Have the GPUs of *changes* leased to this process, so that no other request leases them meanwhile.

    Raises :class:`GpuError` where one of them or of its MIG devices is in use, and where that cannot be found out.
    """
    found = survey(own_env, vendor="nvidia")
    if found.problem:
        raise GpuError(f"whether processes use the GPUs is not known, so they are not divided: {found.problem}")
    meant = {bus_order(change.bus_id): change for change in changes}
    units = [unit for unit in found.units if bus_order(unit.gpu_key) in meant]
    with store:
        taken = holders(found, store.leases(), policy)
        for key, pid in found.computing:
            taken.setdefault(key, f"process {pid} computes on it")
        for key, by in taken.items():
            change = meant.get(bus_order(key.partition("/")[0]))
            if change is not None:
                part = f"the MIG device {key.partition('/')[2]} of " if "/" in key else ""
                raise GpuError(f"{part}GPU {change.index} is in use, so it is not divided anew: {by}")
        leased = tuple([Leased(unit.key, unit.name, unit.index, unit.minor) for unit in units])
        lease = new_lease(_NAME, store.path, leased, kind="lease", name=_NAME)
        store.save(lease)
    try:
        yield
    finally:
        store.remove(lease)
