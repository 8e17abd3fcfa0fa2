"""What a person mistypes in a mount is named by create, with the likely word."""

from __future__ import annotations

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_an_option(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime.refused(bundle().mount("/tmp", "tmpfs", "nosiud", kind="tmpfs"))
    assert 'invalid argument: tmpfs has no option "nosiud" (did you mean "nosuid"?)' in said


def test_an_option_of_a_bind_mount(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime.refused(bundle().mount("/mnt", "/tmp", "rbind", "nosiud"))
    assert 'nosiud (did you mean "nosuid"?)' in said


def test_a_type(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime.refused(bundle().mount("/tmp", "tmpfs", kind="tmpf"))
    assert 'no such device: this kernel has no file system "tmpf" (did you mean "tmpfs"?)' in said


def test_capabilities_are_told_in_one_line(runtime: Runtime, bundle: MakeBundle) -> None:
    """As `runc spec` of runc 1.1 writes them: ambient, but not inheritable."""
    b = bundle().args("true")
    names = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]
    b.process["capabilities"]["ambient"] = names
    said = runtime.run(b)
    assert said.rc == 0
    assert said.err.count("\n") == 1
    assert "can't raise ambient capabilities CAP_KILL, CAP_NET_BIND_SERVICE, CAP_AUDIT_WRITE: operation" in said.err
