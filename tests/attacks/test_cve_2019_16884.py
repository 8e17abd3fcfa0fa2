"""CVE-2019-16884: an image's volume in the place of /proc takes what the runtime writes there, labels before all."""

from __future__ import annotations

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime


@pytest.mark.native
@pytest.mark.attack("CVE-2019-16884", "a volume in the place of /proc takes what the runtime writes to /proc/self/attr")
@pytest.mark.parametrize("destination", ["/proc", "/proc/self/attr", "/proc/self"])
def test_a_volume_over_proc(runtime: Runtime, bundle: MakeBundle, destination: str) -> None:
    b = bundle()
    volume = b.directory / "volume"
    attr = volume / "self/attr/exec"
    attr.parent.mkdir(parents=True)
    attr.write_text("exec docker-default")
    assert attr.read_text(), "what is written there stays in a file, and labels nobody"
    attr.write_text("")
    b.mount(destination, str(volume), "rbind")
    container = runtime.create(b, check=False)
    if container.result.rc == 0:  # crun makes it; no label goes astray as long as none is asked for
        assert runtime.name.startswith("crun")
    else:
        assert "/proc" in container.result.text
    assert attr.read_text() == ""
