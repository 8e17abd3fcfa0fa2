"""What a node of a cluster is configured to do, as records; :mod:`gpurun.kubernetes.config_file` reads them."""

from __future__ import annotations

from gpurun.oci.annotations import CDI_PREFIX
from gpurun.record import Record

TIME_SLICING, MPS, NOT_SHARED = "time-slicing", "mps", "none"
PREFIX = "nvidia.com"


class Replicated(Record):
    """One resource that is shared: *name* and *rename* are whole (``nvidia.com/gpu``); *rename* empty: as it is called."""

    name: str
    replicas: int
    rename: str = ""


class Sharing(Record):
    """How GPUs are shared: *strategy* is ``time-slicing``, ``mps`` or ``none``.

    *fail_more_than_one* refuses a container that asks for more than one replica, which would get it no more GPU.
    """

    strategy: str = NOT_SHARED
    fail_more_than_one: bool = False
    resources: tuple[Replicated, ...] = ()

    def of(self, name: str) -> Replicated | None:
        """How the resource *name* is shared; None when it is not."""
        return next((one for one in self.resources if one.name == name), None)


class PluginConfig(Record):
    """The whole configuration, with the defaults of this program: CDI names, which every current runtime knows.

    *sleep_interval* are the seconds between two looks for labels, 0: not said, infinity: one look.  *node_feature_api*,
    *output_file* (empty: not said) and *oneshot* say where labels go, and whether that is done once.
    *warnings* are sentences about what the file says and gpurun does not do.
    """

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    list_strategies: tuple[str, ...] = ("cdi-cri",)
    id_strategy: str = "uuid"
    pass_device_specs: bool = False
    annotation_prefix: str = CDI_PREFIX
    allocation_policy: str = "distributed"
    driver_root: str = ""
    dev_root: str = ""
    mps_root: str = "/run/gpurun/mps"
    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    no_timestamp: bool = False
    sleep_interval: float = 0.0
    node_feature_api: bool = False
    output_file: str = ""
    oneshot: bool = False
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    sharing: Sharing = Sharing()
    warnings: tuple[str, ...] = ()


#: The defaults.
DEFAULT = PluginConfig()


def resource_part(profile: str) -> str:
    """*profile* as a part of a resource's name: ``1g.10gb+me`` is ``1g.10gb.me``."""
    return profile.replace("+", ".")
