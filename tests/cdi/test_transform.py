"""A CDI file moved to another root, on either side."""

from __future__ import annotations

import pytest

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec
from gpurun.cdi.transform import move_path, transform_root
from gpurun.errors import UsageError
from tests.gpu.nvidia.cdi.generating import made
from tests.simdriver import SimulatedDriver


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("/a/b", "/a", "/x", "/x/b"),
        ("/a", "/a", "/x", "/x"),
        ("/ab", "/a", "/x", "/ab"),
        ("/a/b", "/", "/x", "/x/a/b"),
        ("/a/b", "/a/", "/", "/b"),
        ("/a", "/a", "/", "/"),
        ("b", "/", "/x", "b"),
    ],
)
def test_moved_paths(path: str, old: str, new: str, expected: str) -> None:
    assert move_path(path, old, new) == expected


def test_transform_and_back(sim: SimulatedDriver) -> None:
    spec = made(sim)
    root = str(sim.path)
    driver = transform_root(spec, root, "/")
    assert all(not n.host_path for d in driver.devices for n in d.edits.device_nodes), "then both paths are one"
    assert not any(m.host_path.startswith(root) for m in driver.edits.mounts)
    assert transform_root(driver, "/dev", f"{root}/dev").devices == spec.devices
    inside = transform_root(spec, "/usr", "/opt", "container")
    links = next(h for h in inside.edits.hooks if "create-symlinks" in h.args).args
    assert all("::/opt/" in link for link in links if "::" in link)
    assert transform_root(spec, "/a", "/a") is spec
    with pytest.raises(UsageError):
        transform_root(spec, "/a", "/b", "elsewhere")


@pytest.mark.parametrize("side", ["host", "container"])
@pytest.mark.parametrize(
    "stage", ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
)
def test_a_hook_is_moved_by_where_it_runs(stage: str, side: str) -> None:
    """startContainer hooks are found in the container, the others on the host; from createContainer on they work in it."""
    words = ("nvidia-cdi-hook", "create-symlinks", "--link", "/root/a::/root/b", "--folder", "/other/root")
    moved_words = ("nvidia-cdi-hook", "create-symlinks", "--link", "/target/a::/target/b", "--folder", "/other/root")
    edits = CdiEdits(hooks=(CdiHook(stage, "/root/usr/bin/nvidia-cdi-hook", words, ("A=/root/x",), 7),))
    spec = CdiSpec("0.5.0", "a/b", (CdiDevice("0", edits),), edits)
    new = transform_root(spec, "/root", "/target", side)
    assert new.edits == new.devices[0].edits
    (hook,) = new.edits.hooks
    path_in, args_in = {
        "createContainer": ("host", "container"),
        "startContainer": ("container", "container"),
    }.get(stage, ("host", "host"))
    assert hook.path == ("/target" if side == path_in else "/root") + "/usr/bin/nvidia-cdi-hook"
    assert hook.args == (moved_words if side == args_in else words)
    assert (hook.stage, hook.env, hook.timeout) == (stage, ("A=/root/x",), 7)


@pytest.mark.parametrize(
    ("side", "node", "mount"),
    [("host", ("/target/dev/x", "/root/dev/x"), ("/target/l", "/root/l")),
     ("container", ("/root/dev/x", "/target/dev/x"), ("/root/l", "/target/l"))],
)  # fmt: skip
def test_nodes_and_mounts_are_moved_on_one_side(side: str, node: tuple[str, str], mount: tuple[str, str]) -> None:
    """Also a node that is named once: its other name stays what it was."""
    nodes = (CdiNode("/root/dev/x"), CdiNode("/root/dev/x", "/root/dev/x"), CdiNode("/rooted/dev/x"))
    edits = CdiEdits(device_nodes=nodes, mounts=(CdiMount("/root/l", "/root/l"), CdiMount("/target/l", "/rooted/l")))
    new = transform_root(CdiSpec("0.5.0", "a/b", (), edits), "/root", "/target", side).edits
    assert [(n.host_path or n.path, n.path) for n in new.device_nodes] == [node, node, ("/rooted/dev/x", "/rooted/dev/x")]
    assert [(m.host_path, m.container_path) for m in new.mounts] == [mount, ("/target/l", "/rooted/l")]
