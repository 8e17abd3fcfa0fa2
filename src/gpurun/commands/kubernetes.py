"""kubernetes: what a node of a cluster runs: ``device-plugin``, ``dra-driver``, ``labels``, and the installer of gpurun."""

from __future__ import annotations

import os

from gpurun.cli.table import GROUPS
from gpurun.commands.groups import check_options
from gpurun.commands.kubernetes_options import (
    config_source,
    ended_by_late_gpus,
    host_of,
    interval,
    serving_probes,
    until_signal,
    vendors_of,
)
from gpurun.errors import UsageError
from gpurun.invocation import Invocation
from gpurun.kubernetes.extra import need


def kubernetes(invocation: Invocation) -> int:
    """Run the command that the first argument is until a signal ends it; the exit code.

    Raises :class:`UsageError` for another word.
    """
    what, *rest = invocation.args
    if what == "mps-daemon":
        return _mps_daemon(invocation, rest)
    if what not in GROUPS["kubernetes"] or (rest and what != "explain"):
        known = f"{', '.join(GROUPS['kubernetes'][:-1])} or {GROUPS['kubernetes'][-1]}"
        raise UsageError(f'kubernetes: no such command "{" ".join(invocation.args)}", use {known}')
    check_options(invocation)
    if what == "device-plugin":
        need("grpc", "google.protobuf", "pydantic")
        return _device_plugin(invocation)
    if what == "dra-driver":
        need("pydantic", "grpc", "google.protobuf", "kubernetes")
        from gpurun.commands.kubernetes_dra import dra_driver

        return dra_driver(invocation)
    if what == "mig-manager":
        need("pydantic", "grpc", "google.protobuf", "kubernetes")
        from gpurun.commands.kubernetes_mig import mig_manager

        return mig_manager(invocation)
    if what == "install-node":
        from gpurun.commands.kubernetes_install import install_node

        return install_node(invocation)
    if what == "uninstall-node":
        from gpurun.commands.kubernetes_install import uninstall_node

        return uninstall_node(invocation)
    if what == "explain":
        need("kubernetes")
        from gpurun.commands.kubernetes_explain import explain

        return explain(invocation, rest)
    if what == "manifests":
        from gpurun.commands.kubernetes_manifests import manifests

        return manifests(invocation)
    need("pydantic")
    from gpurun.commands.kubernetes_labels import labels

    return labels(invocation)


def _mps_daemon(invocation: Invocation, arguments: list[str]) -> int:
    """What the device plugin and the DRA driver call on the node; see :mod:`gpurun.gpu.nvidia.mps.node_service`."""
    from gpurun.gpu.nvidia.mps.node_service import launch

    if len(arguments) != 1 or not arguments[0].startswith("/"):
        raise UsageError("kubernetes mps-daemon: needs the directory of the daemon, an absolute path")
    check_options(invocation)
    launch(arguments[0])
    return 0


def _device_plugin(invocation: Invocation) -> int:
    from gpurun.kubernetes.device_plugin.manager import Manager, Places

    env = dict(os.environ)
    managers: list[Manager] = []  # none yet when a node's label is read for the first time

    def changed() -> None:
        for one in managers:
            one.wake()

    makers = vendors_of(invocation)
    source = config_source(invocation, env, changed)
    host = host_of(invocation, source().driver_root, source().dev_root)
    places = Places(
        kubelet_dir=invocation.option("kubelet-dir", Places().kubelet_dir),
        cdi_dir=invocation.option("cdi-dir", Places().cdi_dir),
        interval_s=interval(invocation, Places().interval_s),
    )
    with serving_probes(invocation) as probes:
        manager = Manager(host, source, places, env, probes, makers)
        managers.append(manager)
        until_signal(manager.stop)
        with ended_by_late_gpus(host, manager.stop):
            manager.run()
    return 0
