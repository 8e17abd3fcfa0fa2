"""Which GPUs a restored container asks for: those of its config, but for what the command line, its annotation or the site
says (docs/checkpoint.md)."""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.engine.checkpoint.saved_devices import SavedDevices
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.engine.gpus.leases import open_store
from gpurun.engine.site_config import read_restore, site_path
from gpurun.errors import ConfigError, GpurunError, clean
from gpurun.formats.jsontext import dumps
from gpurun.gpu.leases.allocator import is_named
from gpurun.gpu.leases.survey import describe_lease, survey
from gpurun.gpu.nvidia.request import restore
from gpurun.gpu.nvidia.request.records import DEVICES
from gpurun.gpu.vendors import is_free
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.container import Plan
    from gpurun.oci.config import Config

_NONE = ("", "none", "void")


def restore_request(
    data: bytes, config: Config, saved: SavedDevices | None, pairs: tuple[str, ...], own: tuple[str, str]
) -> tuple[bytes, Config]:
    """The text and the records of the config of a container that is restored as *own* (root, id), for the GPUs that it is
    to have now.  *pairs* are those of ``--gpu-map``, which go before all else.

    Raises :class:`GpurunError` for a map that cannot be, for the annotation and for the site's file.
    """
    given = restore.read_map(pairs, "--gpu-map")
    if given:
        return map_gpus(data, config, saved, given)
    value = _value(config)
    if saved is None or not saved.gpus or is_free(value) or value in _NONE:
        return data, config
    path = site_path(posix.environ)
    site = read_restore(path)
    known = {name for index, name in saved.gpus} | {str(index) for index, _ in saved.gpus}
    by_site = {old: new for old, new in site.gpu_map if old in known}
    data, config = map_gpus(data, config, saved, by_site, f"{path}: restore.gpu-map")
    if restore.gpus_policy(config.annotations, site) != "free" or value == "all":
        return data, config
    words = _value(config).split(",")
    why = _against(words, saved, own)
    if not why:
        return data, config
    log.warning(f"{why}: the container gets free GPUs in place of {clean(','.join(words))}")
    return _with_devices(data, config, f"free:{len(words)}")


def map_gpus(
    data: bytes, config: Config, saved: SavedDevices | None, wanted: dict[str, str], where: str = "--gpu-map"
) -> tuple[bytes, Config]:
    """The text and the records of a config whose container asks for the GPUs that *wanted* says in the place of its own.
    *where* names the map in errors.

    Raises :class:`GpurunError` for a GPU that it did not have, and for a config that does not name its GPUs.  Returns (text,
    records).
    """
    if not wanted:
        return data, config
    if saved is None:
        raise GpurunError(f"{where}: the container that was saved had no GPU")
    value = _value(config)
    if value in _NONE:
        raise ConfigError("process.env", f"{where} replaces the GPUs in {DEVICES}, but that variable names none")
    if is_free(value):
        raise ConfigError("process.env", f"{DEVICES}={clean(value)}: free GPUs are chosen anew: leave {where} out")
    names = {str(index): name for index, name in reversed(saved.gpus)}  # NVIDIA's come first, and an index is theirs
    chosen: dict[str, str] = {}
    for old, new in wanted.items():
        if old not in names and old not in names.values():
            had = ", ".join([f"{index} ({name})" for index, name in saved.gpus]) or "none"
            raise GpurunError(f"{where}: the container had no GPU {clean(old)}: its GPUs were {had}")
        chosen[names.get(old, old)] = new
    words = [name for _, name in saved.gpus] if value == "all" else value.split(",")
    made = []
    for word in words:
        vendor, equals, device = word.strip().rpartition("=")  # a qualified name of CDI
        uuid = names.get(device, device)
        made.append(f"{vendor}{equals}{chosen[uuid]}" if uuid in chosen else word)
        chosen.pop(uuid, None)
    if chosen:
        left = clean(next(iter(chosen)))
        raise ConfigError("process.env", f"{DEVICES}={clean(value)} does not name {left}, which {where} replaces")
    if len(set(made)) < len(made):
        raise GpurunError(f"{where}: a GPU would be there twice: {','.join(made)}")
    return _with_devices(data, config, ",".join(made))


def with_moved(plan: Plan, before: Config, after: Config) -> Plan:
    """*plan* of a container that asks for others than *before*: exec tells the new variable, where engines give the old one.

    GPUs that were leased are named in the lease.
    """
    value = _value(after)
    if value == _value(before) or is_free(value):
        return plan
    edits = plan.init.edits
    env = (*[entry for entry in edits.env if not entry.startswith(f"{DEVICES}=")], f"{DEVICES}={value}")
    return replace(plan, init=replace(plan.init, edits=replace(edits, env=env)))


def _value(config: Config) -> str:
    return next((e.partition("=")[2] for e in config.process.env if e.startswith(f"{DEVICES}=")), "")


def _with_devices(data: bytes, config: Config, value: str) -> tuple[bytes, Config]:
    entry = f"{DEVICES}={value}"
    env = tuple([entry if e.startswith(f"{DEVICES}=") else e for e in config.process.env])
    document = as_object(parse_json(data, "config.json"), "config.json")
    document["process"]["env"] = list(env)
    return dumps(document).encode("utf-8", "surrogateescape"), replace(config, process=replace(config.process, env=env))


def _against(words: list[str], saved: SavedDevices, own: tuple[str, str]) -> str:
    """What stands against the GPUs that *words* name: one is gone, or leased to another container; "" for nothing.

    MIG devices are not replaced: a whole GPU cannot take the place of one.
    """
    if any(name.startswith("MIG-") for _, name in saved.gpus):
        return ""
    own_env = own_environment()
    units = survey(own_env, ask=False).units
    held = {
        unit.key: lease
        for lease in open_store(own_env).leases()
        if lease.kind in ("lease", "share") and (lease.root, lease.id) != own
        for unit in lease.units
    }
    for word in words:
        name = word.strip().rpartition("=")[2]  # of a qualified name of CDI
        unit = next((unit for unit in units if is_named(unit, (name,))), None)
        if unit is None:
            return f"this host has no GPU {clean(name)}"
        lease = next((held[key] for key in held if key.partition("/")[0] == unit.key), None)
        if lease is not None:
            return f"{unit.label} is {'leased' if lease.kind == 'lease' else 'shared'} by {clean(describe_lease(lease))}"
    return ""
