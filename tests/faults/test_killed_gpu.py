"""Creates of GPU containers that are killed or fail: whatever they had made in the image by then, ``delete`` takes away."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.bed import remove_cgroup
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd, intel
from tests.simcards.machines import LATER
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda path: amd.mi210(path, count=2, later=LATER), "AMD_VISIBLE_DEVICES=free"),
        (lambda path: intel.arc(path, first=LATER), "GPURUN_VISIBLE_DEVICES=free"),
        (intel.gaudi, "HABANA_VISIBLE_DEVICES=all"),
    ],
    ids=["amd", "intel", "gaudi"],
)
def test_create_killed_with_nodes_in_the_image(
    runtime: Runtime,
    bundle: MakeBundle,
    leaks: Leaks,
    tmp_path: Path,
    busybox: Path,
    make: Callable[[Path], Host],
    value: str,
) -> None:
    """/dev is the image's own, so nodes, directories and links are made in it; a lease goes with the container."""
    made = make(tmp_path / "host")
    require_nodes(made.real_nodes)
    b = bundle()
    b.process["env"].append(value)
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    (b.rootfs / "dev").mkdir(exist_ok=True)
    env = ENVIRONMENT | made.env
    leaks.allow_rootfs_changes()
    assert runtime.create(b, env=env).delete("--force").rc == 0  # which leaves the config's own nodes, as other runtimes do
    _kill_creates(runtime, b, env, busybox)
    assert json.loads(runtime("gpu", "leases", "--json", env=env).out)["leases"] == []


@pytest.mark.parametrize("user_namespace", [False, True])
def test_create_killed_at_any_moment(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, busybox: Path, user_namespace: bool
) -> None:
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    (b.rootfs / "etc/ld.so.conf.d").mkdir()
    (b.rootfs / "etc/ld.so.cache").write_bytes(b"the image's")
    if user_namespace:
        b.user_namespace()
    _kill_creates(runtime, b, ENVIRONMENT | host.env, busybox)


def _kill_creates(runtime: Runtime, b: Bundle, env: dict[str, str], busybox: Path) -> None:
    """Creates of *b* that are killed at any moment, and one when all is made: ``delete`` gives back the image as it was."""
    moments = random.Random(20210531)
    before = tree_listing(b.rootfs, exact=True)
    start = time.monotonic()
    whole = runtime.create(b, env=env)
    duration = time.monotonic() - start  # of this machine, under the load that it has now
    assert whole.delete("--force").rc == 0

    def kill_one(until: Callable[[subprocess.Popen[bytes]], None]) -> bool:
        """Whether the create that was killed had made something in the image."""
        nonlocal before
        container_id = runtime.new_id()
        b.linux.pop("cgroupsPath", None)
        runtime.prepare(b, container_id)
        process = runtime.popen("create", "--bundle", str(b.directory), container_id, files=runtime.new_files(), env=env)
        until(process)
        process.kill()
        process.wait()
        changed = tree_listing(b.rootfs, exact=True) != before
        cleared = runtime("delete", "--force", container_id)
        assert cleared.rc == 0 and "keeps" not in cleared.text, cleared.text
        after = tree_listing(b.rootfs, exact=True)
        # A directory's time comes back when its journal was finished; without that it stays what the kill made of it.
        assert {k: v[:5] + v[6:] for k, v in after.items()} == {k: v[:5] + v[6:] for k, v in before.items()}
        before = after
        return changed

    for _ in range(rounds(30)):
        kill_one(lambda process: time.sleep(moments.uniform(0, 1.2 * duration)))
    # Chance may have taken moments before the first change alone, or after the last: this one is between them.
    b.config["hooks"] = {"createContainer": [{"path": str(busybox), "args": ["busybox", "sleep", "60"]}]}
    changed = kill_one(
        lambda process: wait_until(
            lambda: tree_listing(b.rootfs, exact=True) != before,
            meanwhile=lambda: None if process.poll() is None else "create has ended",
        )
    )
    assert changed, "what create had made is gone with it"


def test_damaged_state_does_not_hide_the_journal(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    container = runtime.create(b, env=ENVIRONMENT | host.env)
    container.kill("KILL")
    container.wait()
    (runtime.root / container.id / "state").write_bytes(b"damaged")
    assert container.delete("--force").rc == 0
    remove_cgroup(runtime.bed.cgroup(f"{runtime.bed.subtree}/{container.id}"))
