"""kubernetes dra-driver: dynamic resource allocation, until a signal ends it."""

from __future__ import annotations

import os

from gpurun.commands.kubernetes_options import host_of, interval, node_name, serving_probes, until_signal, vendors_of
from gpurun.invocation import Invocation


def dra_driver(invocation: Invocation) -> int:
    """Publish this node's GPUs and serve the kubelet's claims; the exit code."""
    from gpurun.kubernetes.api import connect
    from gpurun.kubernetes.dra.drivers import DraDrivers
    from gpurun.kubernetes.dra.service import DraPlaces

    makers = vendors_of(invocation)
    default = DraPlaces()
    places = DraPlaces(
        kubelet_dir=invocation.option("kubelet-dir", default.kubelet_dir),
        cdi_dir=invocation.option("cdi-dir", default.cdi_dir),
        mps_root=invocation.option("mps-root", default.mps_root),
        interval_s=interval(invocation, default.interval_s),
        memory_shares=invocation.flag("memory-shares"),
    )
    api = connect(invocation.option("kubeconfig"))
    with serving_probes(invocation) as probes:
        driver = DraDrivers(api, node_name(invocation), host_of(invocation), places, dict(os.environ), probes, makers)
        until_signal(driver.stop)
        driver.run()
    return 0
