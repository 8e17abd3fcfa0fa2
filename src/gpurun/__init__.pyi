from gpurun.engine.plan.container import Plan as Plan
from gpurun.errors import ConfigError as ConfigError
from gpurun.errors import ContainerNotFound as ContainerNotFound
from gpurun.errors import GpuError as GpuError
from gpurun.errors import GpurunError as GpurunError
from gpurun.gpu.nvidia.host.gpus import Gpu as Gpu
from gpurun.library.bundle import Bundle as Bundle
from gpurun.library.container import Container as Container
from gpurun.library.host import gpus as gpus
from gpurun.library.stats import Stats as Stats
from gpurun.oci.schema import Problem as Problem

__version__: str
__all__: tuple[str, ...]
