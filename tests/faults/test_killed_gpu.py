"""Creates of GPU containers that are killed or fail: whatever they had made in the image by then, ``delete`` takes away."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import remove_cgroup
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import Options, SimulatedDriver, make

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

ROUNDS = 30


@pytest.fixture
def host(place: Path) -> Iterator[SimulatedDriver]:
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, Options())
    shutil.rmtree(directory)


@pytest.mark.parametrize("user_namespace", [False, True])
def test_create_killed_at_any_moment(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, user_namespace: bool
) -> None:
    moments = random.Random(20210531)
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    (b.rootfs / "etc/ld.so.conf.d").mkdir()
    (b.rootfs / "etc/ld.so.cache").write_bytes(b"the image's")
    if user_namespace:
        b.user_namespace()
    before = tree_listing(b.rootfs, exact=True)
    half_made = 0
    start = time.monotonic()
    whole = runtime.create(b, env=ENVIRONMENT | host.env)
    duration = time.monotonic() - start  # of this machine, under the load that it has now
    assert whole.delete("--force").rc == 0
    for _ in range(ROUNDS):
        container_id = runtime.new_id()
        b.linux.pop("cgroupsPath", None)
        runtime._prepare(b, container_id)
        files = runtime._files()
        process = runtime.popen(
            "create", "--bundle", str(b.directory), container_id, files=files, env=ENVIRONMENT | host.env
        )
        time.sleep(moments.uniform(0, 1.2 * duration))
        process.kill()
        process.wait()
        now = tree_listing(b.rootfs, exact=True)
        half_made += now != before
        cleared = runtime("delete", "--force", container_id)
        assert cleared.rc == 0 and "keeps" not in cleared.text, cleared.text
        after = tree_listing(b.rootfs, exact=True)
        # A directory's time comes back when its journal was finished; without that it stays what the kill made of it.
        assert {k: v[:5] + v[6:] for k, v in after.items()} == {k: v[:5] + v[6:] for k, v in before.items()}
        before = after
    assert half_made, "no create was killed after it had made something"


def test_damaged_state_does_not_hide_the_journal(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    b = bundle()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    container = runtime.create(b, env=ENVIRONMENT | host.env)
    container.kill("KILL")
    container.wait()
    (runtime.root / container.id / "state").write_bytes(b"damaged")
    assert container.delete("--force").rc == 0
    remove_cgroup(runtime.bed.cgroup(f"{runtime.bed.subtree}/{container.id}"))
