"""CVE-2019-19921, CVE-2023-27561 and CVE-2023-28642: /proc or /sys of the image is a link, so that the real one is mounted
elsewhere, and masks and labels are put on files of the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.tools import replace
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime


@pytest.mark.native
@pytest.mark.attack("CVE-2019-19921, CVE-2023-27561, CVE-2023-28642", "/proc or /sys of the image is a link")
@pytest.mark.parametrize("name", ["proc", "sys"])
@pytest.mark.parametrize("target", ["/tmp", "tmp", "../../outside/dir"])
def test_kernel_file_systems_need_an_ordinary_directory(
    runtime: Runtime, bundle: MakeBundle, outside: Path, name: str, target: str
) -> None:
    b = bundle().args("echo", "must not run")
    link = replace(b, name, target)
    assert link.is_dir(), "who follows the link finds a directory to mount on, and it is not the one in the image"
    said = runtime.refused(b)
    if not runtime.name.startswith("crun"):  # which has words of its own for each target
        assert "must be mounted on ordinary directory" in said
