"""A container that gets GPUs and loses them while it runs, on a host with four."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Result, Runtime
from tests.simdriver import SimulatedDriver, bus_id, minor, uuid

GPUS = 4
DENIED, NO_DRIVER = "Operation not permitted", "No such device or address"


class Box:
    """A container that runs, and what can be asked of it."""

    def __init__(self, runtime: Runtime, container: Container, env: dict[str, str], major: int) -> None:
        self.runtime, self.container, self.env, self.major = runtime, container, env, major
        self.id = container.id

    def gpu(self, *words: str, **how: Any) -> Result:
        return self.runtime("gpu", words[0], *how.pop("options", ()), self.id, *words[1:], env=self.env, **how)

    def attach(self, *devices: str) -> None:
        done = self.gpu("attach", *devices)
        assert done.rc == 0, done.text

    def detach(self, *devices: str) -> None:
        done = self.gpu("detach", *devices)
        assert done.rc == 0, done.text

    def sh(self, script: str) -> str:
        done = self.runtime("exec", self.id, "sh", "-c", script, env=self.env)
        return (done.out + done.err).strip()

    def opens(self, index: int) -> str:
        """What opening the GPU by a node of the container's own making says."""
        number = minor(index, GPUS)
        path = f"/tmp/n{number}.{time.monotonic_ns()}"
        return self.sh(f"mknod {path} c {self.major} {number}; (: <>{path}) 2>&1; rm {path}").rpartition(": ")[2]

    def sees(self) -> dict[str, Any]:
        parts = (
            "ls /dev | grep 'nvidia[0-9]'",
            "ls /proc/driver/nvidia/gpus",
            "echo $NVIDIA_VISIBLE_DEVICES",
            "nvidia-smi -L",
        )
        out = self.sh("; echo =; ".join(parts))
        nodes, gpus, names, smi = [part.split("\n") for part in out.split("=\n")]
        return {
            "nodes": sorted(n for n in nodes if n),
            "gpus": sorted(n for n in gpus if n and "No such" not in n),
            "names": [n for n in names[0].split(",") if n],
            "smi": "\n".join(smi),
        }

    def has(self, *indices: int) -> None:
        """The container has these GPUs and no others, in each way in which it can tell."""
        seen = self.sees()
        assert seen["nodes"] == sorted(f"nvidia{minor(i, GPUS)}" for i in indices)
        assert seen["gpus"] == sorted(bus_id(i) for i in indices)
        assert sorted(seen["names"]) == (sorted(uuid(i) for i in indices) or ["none"])
        for index in range(GPUS):
            assert self.opens(index) == (NO_DRIVER if index in indices else DENIED), f"GPU {index}"
            assert (uuid(index) in seen["smi"]) is (index in indices)


MakeBox = Callable[..., Box]


def box_maker(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> MakeBox:
    """``make("free:2", change, script)``: a container on *host* that runs *script* and may make nodes."""

    def make(devices: str = "", change: Callable[[Bundle], object] = lambda b: None, script: str = "exec sleep 600") -> Box:
        b = bundle().sh(script).capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
        if devices:
            b.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}"]
        change(b)
        env = ENVIRONMENT | host.env
        return Box(runtime, runtime.start(b, env=env), env, host.options.major)

    return make
