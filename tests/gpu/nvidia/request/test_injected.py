"""GPUs that an engine has put into config.json itself: the container sees its own in /proc/driver/nvidia, and no others."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits, ProcTree
from gpurun.commands.gpu_explain import answer_for, lines_of, question
from gpurun.engine.gpus.device_edits import injected_devices
from gpurun.engine.kept import load_given
from gpurun.gpu.nvidia.request.settings import Settings, read_settings
from gpurun.gpu.request.injected import Injected, has_gpus
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.gpu.vendors import VENDORS, GivenGpu
from gpurun.oci.config import Device, Mount, read_config
from gpurun.oci.resources import DeviceRule
from gpurun.record import replace
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle, base_config
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import require_nodes
from tests.simdriver import MAJORS, Options, SimulatedDriver, bus_id, make, mig_minor, minor, uuid

CONTROL = Device("/dev/nvidiactl", "c", 195, 255)
MIG = ((0, 1, 0), (0, 2, 0))


def node(index: int, path: str = "", gpus: int = 4) -> Device:
    """The node of a GPU, at its own path or at another."""
    number = minor(index, gpus)
    return Device(path or f"/dev/nvidia{number}", "c", 195, number)


def caps(*numbers: int) -> tuple[Device, ...]:
    return tuple([Device(f"/dev/nvidia-caps/nvidia-cap{n}", "c", MAJORS["nvidia-caps"], n) for n in numbers])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    sim = make(tmp_path_factory.mktemp("engine") / "host", Options(gpus=4, mig=MIG))
    require_nodes(sim.real_nodes)
    return sim


def asked(
    host: SimulatedDriver, injected: Injected, *env: str, privileged: bool = False, settings: Settings | None = None
) -> ContainerEdits | None:
    return gpu_edits(Inquiry(env, {}, privileged, host.env, settings or Settings(), injected=injected))


def proc(edits: ContainerEdits | None) -> ProcTree:
    assert edits is not None
    (tree,) = [t for t in edits.proc_trees if t.path == "/proc/driver/nvidia"]
    return tree


def shown(edits: ContainerEdits | None) -> list[str]:
    """What is to be seen below /proc/driver/nvidia, ``params`` apart: that nobody makes nodes always holds."""
    tree = proc(edits)
    (params,) = [f.content for f in tree.files if f.path.endswith("/params")]
    assert b"ModifyDeviceFiles: 0" in params
    return [bind.container_path.removeprefix("/proc/driver/nvidia/") for bind in tree.binds]


def of(*indices: int) -> list[str]:
    return [f"gpus/{bus_id(i)}" for i in indices]


def test_nodes_say_which_gpus_are_the_containers(host: SimulatedDriver) -> None:
    edits = asked(host, Injected(devices=(CONTROL, node(2))))
    assert shown(edits) == of(2)
    assert edits is not None and edits.numa_nodes
    rest = replace(edits, proc_trees=(), numa_nodes=())
    assert rest == ContainerEdits(), "nothing else is added: the engine has done it"
    assert "whose nodes the config has" in edits.proc_trees[0].reason


def test_a_node_may_have_any_path(host: SimulatedDriver) -> None:
    assert shown(asked(host, Injected(devices=(node(1, "/dev/gpu"), node(3))))) == of(1, 3)


def test_nodes_bound_from_the_host(host: SimulatedDriver) -> None:
    """As Podman gives devices without root."""
    bound = Mount("/dev/nvidia0", "bind", f"{host.path}/dev/nvidia{minor(3, 4)}", ("rbind",))
    gone = Mount("/dev/nvidia9", "bind", f"{host.path}/dev/nvidia9", ("rbind",))
    assert shown(asked(host, Injected(mounts=(bound, gone)))) == of(3)
    caps = mig_minor(minor(0, 4), 1)
    for name in ("nvidia-uvm", "nvidiactl", "nvidia-uvm-tools", f"nvidia-caps/nvidia-cap{caps}", "nvidia8"):
        other = Mount("/data", "bind", f"{host.path}/dev/{name}", ("rbind",))
        assert asked(host, Injected(mounts=(other,))) is None


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        (DeviceRule(True, "c", 195, None, "rw"), of(0, 1, 3)),
        (DeviceRule(True, "c", 195, minor(3, 4), "rwm"), of(3)),
        (DeviceRule(True, "c", 195, None, "m"), []),
        (DeviceRule(False, "c", 195, None, "rwm"), []),
        (DeviceRule(True, "c", None, None, "rwm"), []),
        (DeviceRule(True, "a", None, None, "rwm"), []),
        (DeviceRule(True, "b", 195, None, "rwm"), []),
    ],
)
def test_rules_that_name_the_major(host: SimulatedDriver, rule: DeviceRule, more: list[str]) -> None:
    assert sorted(shown(asked(host, Injected(devices=(node(2),), rules=(rule,))))) == sorted(of(2) + more)
    assert asked(host, Injected(rules=(rule,))) is None, "without a node there is nothing to filter"


def test_mig_devices_by_their_capabilities(host: SimulatedDriver) -> None:
    gpu = minor(0, 4)
    own = (mig_minor(gpu, 1), mig_minor(gpu, 1, 0))
    files = [f"capabilities/gpu{gpu}/mig/gi1/access", f"capabilities/gpu{gpu}/mig/gi1/ci0/access"]
    assert shown(asked(host, Injected(devices=(node(0), *caps(*own))))) == [*of(0), *files]
    assert shown(asked(host, Injected(devices=(node(0), *caps(*own[:1]))))) == of(0), "half of a MIG device is none"
    assert shown(asked(host, Injected(devices=(node(1), *caps(*own))))) == of(1), "its GPU's node is needed as well"


def test_who_administers_mig_sees_the_hosts(host: SimulatedDriver) -> None:
    assert asked(host, Injected(devices=(node(0), *caps(1)))) is None
    assert asked(host, Injected(devices=(node(0), *caps(2)))) is None


@pytest.mark.parametrize("value", ["void", ""])
def test_void_adds_nothing_and_hides_the_others(host: SimulatedDriver, value: str) -> None:
    """Files of CDI set it: an engine has done the injection."""
    edits = asked(host, Injected(devices=(node(1),)), f"NVIDIA_VISIBLE_DEVICES={value}")
    assert shown(edits) == of(1) and edits is not None and not edits.device_nodes


def test_asked_for_both_ways_both_are_seen(host: SimulatedDriver) -> None:
    edits = asked(host, Injected(devices=(node(2),)), "NVIDIA_VISIBLE_DEVICES=3", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert shown(edits) == of(3, 2)
    assert edits is not None and {0, 1} >= set(edits.numa_nodes) and len(edits.numa_nodes) == len(set(edits.numa_nodes))
    same = asked(host, Injected(devices=(node(3),)), "NVIDIA_VISIBLE_DEVICES=3", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert shown(same) == of(3)


def test_a_request_that_the_site_denies_leaves_the_engines(host: SimulatedDriver) -> None:
    config = host.path / "config.toml"
    config.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    edits = asked(host, Injected(devices=(node(0),)), "NVIDIA_VISIBLE_DEVICES=all", settings=read_settings(str(config)))
    assert shown(edits) == of(0) and edits is not None and "Ignoring devices" in edits.warnings[0]


def test_params_of_the_host_where_the_site_says_so(host: SimulatedDriver) -> None:
    """One file of the tree cannot come from two places."""
    settings = Settings(jit_disabled_hooks=("disable-device-node-modification",))
    tree = proc(asked(host, Injected(devices=(node(2),)), "NVIDIA_VISIBLE_DEVICES=3", settings=settings))
    names = [x.container_path for x in tree.binds] + [f.path for f in tree.files]
    assert names.count("/proc/driver/nvidia/params") == 1 and len(names) == len(set(names))


@pytest.mark.parametrize(
    "changed",
    [
        {"privileged": True},
        {"settings": Settings(filter_engine_devices=False)},
        {"injected": Injected(devices=(node(0),), mount_namespace=False)},
        {"injected": Injected(devices=(CONTROL, Device("/dev/nvidia-uvm", "c", 510, 0), Device("/dev/sda", "b", 195, 0)))},
    ],
)
def test_left_as_it_is(host: SimulatedDriver, changed: dict[str, Any]) -> None:
    assert asked(host, **({"injected": Injected(devices=(node(0),))} | changed)) is None


def test_the_sites_word(host: SimulatedDriver) -> None:
    config = host.path / "config.toml"
    config.write_text("[gpurun]\nfilter-engine-devices = false\n")
    assert not read_settings(str(config)).filter_engine_devices
    injected, own = Injected(devices=(node(0),)), host.env | {"NVIDIA_CTK_CONFIG_FILE_PATH": str(config)}
    assert gpu_edits(Inquiry((), {}, False, own, injected=injected)) is None
    assert shown(gpu_edits(Inquiry((), {}, False, host.env, injected=injected))) == of(0)


def test_a_host_without_the_driver_or_with_broken_nodes(make_sim: Callable[[Options], SimulatedDriver]) -> None:
    """Who has not asked gpurun for GPUs is not refused for what is wrong with those of the host."""
    host = make_sim(Options(gpus=4))
    (host.path / f"dev/nvidia{minor(1, 4)}").unlink()
    (host.path / f"dev/nvidia{minor(1, 4)}").mkdir()  # what `docker run -v /dev/nvidia1` leaves where there was none
    assert shown(asked(host, Injected(devices=(node(0),)))) == of(0)
    shutil.rmtree(host.path / "proc/driver")
    assert asked(host, Injected(devices=(node(0),))) is None


def test_without_a_mount_namespace_of_its_own() -> None:
    """What would be hidden is in the /proc of others as well."""
    config = base_config()
    config["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    config["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "major": 195, "access": "rw"})
    made = injected_devices(read_config(json.dumps(config).encode()))
    assert made.mount_namespace and has_gpus(made, VENDORS[0])
    assert made.rules[-1] == DeviceRule(True, "c", 195, None, "rw") and made.mounts[0].destination == "/proc"
    config["linux"]["namespaces"] = [{"type": "pid"}]
    assert not injected_devices(read_config(json.dumps(config).encode())).mount_namespace


def test_explained(host: SimulatedDriver, tmp_path: Path) -> None:
    config = base_config()
    config["linux"]["devices"] = [{"path": "/dev/gpu", "type": "c", "major": 195, "minor": minor(1, 4)}]
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = answer_for(question((str(tmp_path),)), host.env)
    assert f"/proc/driver/nvidia/{of(1)[0]}" in [item["path"] for item in answer["items"]]
    text = "\n".join(lines_of(answer))
    assert "no GPU is asked for, but" in text and "whose nodes the config has" in text and bus_id(0) not in text


# -- containers ---------------------------------------------------------------------------------------------------------

SCRIPT = "cd /proc/driver/nvidia; echo gpus $(ls gpus); grep Modify params; touch gpus/x params 2>&1; ls /dev | grep nvidia"


@pytest.fixture
def sim(place: Path) -> Iterator[SimulatedDriver]:
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, Options())
    shutil.rmtree(directory)


def with_nodes(bundle: Bundle, *indices: int) -> Bundle:
    """*bundle* as an engine leaves it for ``--device /dev/nvidiaN``."""
    numbers = [255, *[minor(i, 2) for i in indices]]
    bundle.linux["devices"] = [
        {"path": f"/dev/nvidia{n if n < 255 else 'ctl'}", "type": "c", "major": 195, "minor": n, "fileMode": 0o666}
        for n in numbers
    ]
    bundle.linux["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": 195, "minor": n, "access": "rwm"} for n in numbers
    ]
    return bundle


@pytest.mark.native
@pytest.mark.gpurun_only
class TestContainers:
    def test_its_own_gpu_and_no_other(self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver) -> None:
        out = runtime.output(with_nodes(bundle(), 1).sh(SCRIPT), env=ENVIRONMENT | sim.env).splitlines()
        assert out[:2] == [f"gpus {bus_id(1)}", "ModifyDeviceFiles: 0"]
        assert sum("Read-only file system" in line for line in out) == 2
        assert out[-2:] == [f"nvidia{minor(1, 2)}", "nvidiactl"]

    def test_in_a_user_namespace(self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver) -> None:
        made = bundle().user_namespace()
        made.mount("/dev/nvidia0", f"{sim.path}/dev/nvidia{minor(0, 2)}", "rbind", "rprivate")
        out = runtime.output(made.sh(SCRIPT), env=ENVIRONMENT | sim.env).splitlines()
        assert out[:2] == [f"gpus {bus_id(0)}", "ModifyDeviceFiles: 0"]

    def test_beside_a_request(self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver) -> None:
        made = with_nodes(bundle(), 1)
        made.process["env"].append("NVIDIA_VISIBLE_DEVICES=0")
        out = runtime.output(made.sh("nvidia-smi -L; ls /proc/driver/nvidia/gpus"), env=ENVIRONMENT | sim.env)
        assert out.split()[-2:] == [bus_id(0), bus_id(1)] and uuid(0) in out and uuid(1) in out

    def test_its_use_is_told_by_its_number(self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver) -> None:
        """What ``events`` asks NVML for: the node may have any path."""
        made = with_nodes(bundle(), 1)
        made.linux["devices"][1]["path"] = "/dev/gpu"
        container = runtime.create(made.args("true"), env=ENVIRONMENT | sim.env)
        assert load_given(str(runtime.root), container.id) == (GivenGpu(195, minor(1, 2)),)

    def test_a_proc_without_drivers(self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver) -> None:
        """Nothing can be hidden where nothing is: the container is made all the same."""
        made = with_nodes(bundle(), 0)
        made.config["mounts"][0]["options"] = ["subset=pid"]
        made.linux["maskedPaths"] = made.linux["readonlyPaths"] = []
        assert runtime.output(made.sh("ls /proc/driver 2>&1; echo $?"), env=ENVIRONMENT | sim.env).endswith("1\n")

    @pytest.mark.parametrize("propagation", ["rshared", "shared", ""])
    def test_a_proc_of_the_hosts(
        self, runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, shared_proc: int, propagation: str
    ) -> None:
        """Bound with shared propagation: what hides the other GPUs in the container does not hide them on the host."""
        made = with_nodes(bundle(), 1).without_namespace("pid")
        bind = {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind", "rshared"]}
        made.config["mounts"][0] = bind
        made.linux.update({"rootfsPropagation": propagation, "maskedPaths": [], "readonlyPaths": []})
        before = mounts_of(shared_proc)
        container = runtime.create(made.sh("ls /proc/driver/nvidia/gpus"), env=ENVIRONMENT | sim.env)
        assert mounts_of(shared_proc) == before
        container.start()
        container.wait()
        assert container.out == f"{bus_id(1)}\n"
        assert mounts_of(shared_proc) == before


def mounts_of(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4].startswith("/proc")]


@pytest.fixture
def shared_proc(runtime: Runtime) -> int:
    """The mount namespace that the runtime runs in, by a process in it; its /proc is shared, as systemd's is."""
    pids = sorted(runtime.bed.own_pids)
    if not pids:
        pytest.skip("the bed is the host itself, whose /proc stays as it is")
    assert any(" shared:" in line for line in mounts_of(pids[0]))
    return pids[0]
