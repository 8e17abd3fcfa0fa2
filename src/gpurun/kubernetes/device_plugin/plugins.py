"""The plugins of a node, one for each resource, and their registration: the kubelet may come, go and come again."""

from __future__ import annotations

from collections.abc import Callable

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.kubernetes.device_plugin.plugin import Offering, Plugin
from gpurun.kubernetes.kubelet import device_plugins, identity
from gpurun.record import replace


class Plugins:
    """All plugins; one thread calls this.  *prepare* is what each :class:`Plugin` calls before it answers."""

    def __init__(self, kubelet_dir: str, prepare: Callable[[], None]) -> None:
        self._directory, self._prepare = kubelet_dir, prepare
        self._plugins: dict[str, Plugin] = {}
        self._offered: dict[str, Offering] = {}
        self._registered: dict[str, tuple[int, int, int]] = {}

    def offer(self, offerings: tuple[Offering, ...]) -> None:
        """Offer just these from now on."""
        names = {offering.offer.name for offering in offerings}
        for name in [name for name in self._plugins if name not in names]:
            log.warning(f"{name}: is not offered any more")
            self._plugins.pop(name).stop()
            self._registered.pop(name, None)
            self._offered.pop(name, None)
        for offering in offerings:
            name = offering.offer.name
            _tell_changes(self._offered.get(name), offering)
            self._offered[name] = offering
            if name in self._plugins:
                self._plugins[name].update(offering)
            else:
                self._plugins[name] = Plugin(offering, self._directory, self._prepare)

    def all_unhealthy(self, why: str) -> None:
        """Go on offering the same, but nothing of it is well."""
        self.offer(unwell(tuple(self._offered.values()), why))

    def keep_registered(self) -> list[str]:
        """Make sockets that are missing, and register where that is due; what went wrong, in sentences."""
        problems = []
        kubelet = identity(f"{device_plugins(self._directory)}/kubelet.sock")
        for name, plugin in self._plugins.items():
            try:
                if not plugin.served:
                    self._registered.pop(name, None)
                    plugin.serve()
                if kubelet == (0, 0, 0):
                    problems.append(f"{device_plugins(self._directory)}/kubelet.sock is not there: the kubelet does not run")
                elif self._registered.get(name) != kubelet:
                    plugin.register()
                    self._registered[name] = kubelet
            except GpurunError as e:
                problems.append(str(e))
        return list(dict.fromkeys(problems))

    def unregistered(self) -> list[str]:
        """The names of what the kubelet that runs now does not know yet."""
        kubelet = identity(f"{device_plugins(self._directory)}/kubelet.sock")
        return [name for name in self._plugins if kubelet == (0, 0, 0) or self._registered.get(name) != kubelet]

    def stop(self) -> None:
        """Close all sockets."""
        for plugin in self._plugins.values():
            plugin.stop()
        self._plugins.clear()

    def __len__(self) -> int:
        return len(self._plugins)


def unwell(offerings: tuple[Offering, ...], why: str) -> tuple[Offering, ...]:
    """*offerings*, of which nothing is well."""
    return tuple([replace(o, unhealthy={device.id: why for device in o.offer.devices}) for o in offerings])


def _tell_changes(before: Offering | None, now: Offering) -> None:
    """Say which devices have become unhealthy or healthy again, have come or gone."""
    name = now.offer.name
    old = before.unhealthy if before else {}
    ids = {device.id for device in now.offer.devices}
    known = {device.id for device in before.offer.devices} if before else ids
    for text, which in (
        ("is unhealthy: {}", [identity_ for identity_ in now.unhealthy if identity_ not in old]),
        ("is healthy again", [identity_ for identity_ in old if identity_ not in now.unhealthy and identity_ in ids]),
        ("is new", [device.id for device in now.offer.devices if device.id not in known]),
        ("is gone", sorted(known - ids)),
    ):
        for identity_ in which:
            say = log.info if text in ("is new", "is healthy again") else log.warning
            say(f"{name}: {identity_} {text.format(now.unhealthy.get(identity_, ''))}")
