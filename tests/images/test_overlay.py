"""Bundles whose root is an overlay: the same tree as unpacked layers give, shared, mounted and taken away again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.images import layers as layers_module
from gpurun.images import overlay_bundle
from gpurun.images.layers import Limits
from gpurun.images.overlay import NoOverlay, check_overlay
from gpurun.images.overlay_bundle import make_overlay, mount_bundle, remove_bundle
from gpurun.images.store import Layer, chain_ids
from tests.fixtures import InNamespace
from tests.images.making import USERS, Entry, layer
from tests.images.test_layers import HOSTILE, LIMITS, unpack

pytestmark = pytest.mark.native

Answer = dict[str, Any]


@pytest.fixture
def place(tmp_path: Path, in_mount_namespace: InNamespace[Any]) -> Path:
    """A directory that overlays can be in, for tests that call functions in a mount namespace of their own."""

    def possible() -> str:
        try:
            check_overlay(str(tmp_path), str(tmp_path))
        except NoOverlay as e:
            return str(e)
        return ""

    if why := in_mount_namespace(possible):
        pytest.skip(why)
    return tmp_path


def written(place: Path, *images: bytes) -> list[Layer]:
    """The layers as files, with their digests."""
    found = []
    for data in images:
        digest = hashlib.sha256(data).hexdigest()
        (place / digest).write_bytes(data)
        found.append(Layer(str(place / digest), f"sha256:{digest}"))
    return found


def overlay(place: Path, *images: bytes, name: str = "bundle", limits: Limits = LIMITS) -> Path:
    """A new bundle's directory, with an overlay of *images*, whose layers are in *place*/store."""
    (place / name).mkdir(mode=0o700)
    make_overlay(str(place / name), written(place, *images), str(place / "store"), limits)
    return place / name


def listing(root: Path) -> Answer:
    """All that there is to see of each file below *root*; times of what an archive gives none are left out."""
    found: Answer = {}
    for path in [root, *sorted(root.rglob("*"))]:
        s = path.lstat()
        content: object = None
        if stat.S_ISREG(s.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(s.st_mode):
            content = os.readlink(path)
        attributes = {
            name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
        }
        time = int(s.st_mtime) if int(s.st_mtime) == 1_000_000 else None
        found[str(path.relative_to(root))] = (oct(s.st_mode), s.st_uid, s.st_gid, s.st_rdev, time, content, attributes)
    return found


def layers_kept(store: Path) -> set[str]:
    return {path.name for path in store.iterdir()} - {"bundles", "unfinished", "lock"}


def mounted(place: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(place) in line]


def nothing_left(store: Path) -> bool:
    return not layers_kept(store) and not os.listdir(store / "bundles") and not os.listdir(store / "unfinished")


#: cap_net_raw=ep, as the kernel keeps it (struct vfs_cap_data, revision 2).
CAPABILITY = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00".decode("latin-1")

BASE = layer(
    ("./", "dir", None), *USERS, ("bin", "dir", None), ("bin/ping", "file", "program"), ("srv", "dir", None),
    ("srv/a", "file", "a"), ("srv/b", "hard", "srv/a"), ("old/deep/file", "file", "1"), ("usr/lib", "dir", None),
    ("lib", "link", "usr/lib"), ("mine", "dir", None), ("mine/x", "file", "x"), ("gone", "dir", None),
    ("gone/y", "file", "y"), ("pipe", "fifo", None), ("name with blanks: and, signs", "file", "odd"),
    bin_ping={"pax_headers": {"SCHILY.xattr.security.capability": CAPABILITY, "SCHILY.xattr.user.note": "kept"}},
    mine={"uid": 1000, "gid": 100, "mode": 0o1770}, mine_x={"uid": 1000, "mode": 0o4755},
)  # fmt: skip
UPPER: dict[str, tuple[bytes, ...]] = {
    "none": (),
    "files away and anew": (
        layer(("srv/.wh.a", "file", ""), ("bin/.wh.ping", "file", "")),
        layer(("bin/ping", "file", "2")),
    ),
    "a directory away": (layer((".wh.old", "file", "")),),
    "a directory away and anew": (layer((".wh.old", "file", "")), layer(("old/new", "file", "n"))),
    "an opaque directory": (layer(("srv/.wh..wh..opq", "file", ""), ("srv/new", "file", "n")),),
    "an opaque directory, late": (layer(("srv/new", "file", "n"), ("srv/.wh..wh..opq", "file", "")),),
    "an opaque directory that is not listed": (layer(("mine/.wh..wh..opq", "file", "")), layer(("mine/z", "file", "z"))),
    "a link to a lower layer's file": (layer(("srv/c", "hard", "srv/b")), layer(("bin/pong", "hard", "bin/ping"))),
    "one of two links away": (layer(("srv/.wh.a", "file", "")), layer(("srv/a", "file", "other"))),
    "through a lower layer's link": (layer(("lib/new.so", "file", "so")), layer(("lib/.wh.new.so", "file", ""))),
    "in a directory that is not listed": (layer(("mine/new", "file", "n")),),
    "a directory's mode and owner": (layer(("mine", "dir", None), mine={"uid": 7, "gid": 8, "mode": 0o711}),),
    "the root's mode and owner": (layer(("./", "dir", None), _={"uid": 3, "mode": 0o711}), layer(("n", "file", ""))),
    "a file for a directory": (layer(("gone", "file", "file")), layer(("gone", "dir", None), ("gone/z", "file", "z"))),
    "a link for a directory": (layer(("gone", "link", "mine")), layer(("gone/through", "file", "t"))),
    "a directory for a file": (layer(("bin/ping", "dir", None), ("bin/ping/in", "file", "i")),),
    "layers of nothing": (layer(), layer(), layer(("n", "file", "")), layer()),
    "the same layer twice": (layer(("srv/.wh.a", "file", "")), BASE, layer(("srv/.wh.a", "file", ""))),
    "128 layers": tuple(layer((f"srv/{n % 7}", "file", str(n)), (f"srv/.wh.{(n + 3) % 7}", "file", "")) for n in range(127)),
}


def test_a_capability_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.setxattr(tmp_path / "file", "security.capability", CAPABILITY.encode("latin-1"))
    assert listing(unpack(tmp_path, BASE))["bin/ping"][-1].keys() == {"security.capability", "user.note"}


@pytest.mark.parametrize("name", UPPER)
def test_the_tree_is_that_of_unpacked_layers(place: Path, in_mount_namespace: InNamespace[Any], name: str) -> None:
    images = (BASE, *UPPER[name])
    unpacked = listing(unpack(place, *images))
    assert len(unpacked) > 15
    assert in_mount_namespace(lambda: listing(overlay(place, *images) / "rootfs")) == unpacked


def random_layer(chance: random.Random) -> bytes:
    """Some entries of a few names, so that layers often meet; each name has one kind within a layer."""
    names = ["a", "b", "a/a", "a/b", "b/a", "b/a/a", "b/a/b", "c/a", "c/a/a"]
    entries: list[Entry] = []
    kinds: dict[str, str] = {}
    for name in sorted(chance.sample(names, chance.randint(1, 6))):
        above = [name.rsplit("/", n)[0] for n in range(1, name.count("/") + 1)]
        if any(kinds.get(one, "dir") != "dir" for one in above):
            continue
        parent, _, last = name.rpartition("/")
        kind = chance.choice(["file", "file", "dir", "dir", "file", "link", "white", "opaque", "hard"])
        if kind == "hard" and "file" not in kinds.values():
            kind = "file"
        if kind == "white":
            entries.append((f"{parent}/.wh.{last}".lstrip("/"), "file", ""))
            continue
        if kind == "opaque":
            entries.append((f"{parent}/.wh..wh..opq".lstrip("/"), "file", ""))
            continue
        files = [one for one, made in kinds.items() if made == "file"]
        kinds[name] = kind
        entries.append((name, kind, {"file": str(chance.random()), "link": "b"}.get(kind, files[-1:] and files[-1])))
    return layer(*entries)


def test_trees_of_layers_made_by_chance(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    """What one way refuses (a hard link to nothing, a file in a file) the other refuses with the same words."""

    def both(seed: int) -> tuple[object, object]:
        chance = random.Random(seed)
        images = [random_layer(chance) for _ in range(chance.randint(2, 5))]
        work = place / str(seed)
        work.mkdir()
        try:
            one: object = listing(unpack(work, *images))
        except GpurunError as e:
            one = str(e).partition(": ")[2]
        try:
            other: object = listing(overlay(work, *images) / "rootfs")
        except NoOverlay:
            raise
        except GpurunError as e:
            other = str(e).partition(": ")[2]
        return one, other

    made = in_mount_namespace(lambda: [both(seed) for seed in range(80)])
    assert [seed for seed, (one, other) in enumerate(made) if one != other] == []
    assert sum(isinstance(one, dict) for one, _ in made) > 20


def test_bundles_share_layers_and_not_what_is_written(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    def shared() -> list[object]:
        one = overlay(place, BASE, layer(("n", "file", "1")), name="one")
        (base,) = [place / "store" / name for name in chain_ids(written(place, BASE))]
        inode = (base / "srv/b").stat().st_ino
        two = overlay(place, BASE, layer(("n", "file", "2")), name="two")
        (one / "rootfs/srv/b").write_text("changed")
        seen = [(one / "rootfs/n").read_text(), (two / "rootfs/n").read_text(), (two / "rootfs/srv/b").read_text()]
        same, kept = inode == (base / "srv/b").stat().st_ino, len(layers_kept(place / "store"))
        remove_bundle(str(one), "")
        left, alive = len(layers_kept(place / "store")), (two / "rootfs/srv/b").read_text()
        remove_bundle(str(two), "")
        return [seen, same, kept, left, alive, one.exists() or two.exists(), mounted(place), nothing_left(place / "store")]

    assert in_mount_namespace(shared) == [["1", "2", "a"], True, 3, 2, "a", False, [], True]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("below", [False, True], ids=["alone", "over another layer"])
def test_a_hostile_layer_leaves_nothing(place: Path, in_mount_namespace: InNamespace[Any], name: str, below: bool) -> None:
    entries, said = HOSTILE[name]

    def refused() -> tuple[bool, list[str], bool]:
        images = [*([layer(("first", "file", ""))] if below else []), layer(*entries)]
        with pytest.raises(GpurunError, match=said) as e:
            overlay(place, *images)
        return isinstance(e.value, NoOverlay), mounted(place), nothing_left(place / "store")

    assert in_mount_namespace(refused) == (False, [], True)
    assert not (place / "evil").exists()


def test_a_link_of_a_lower_layer_leads_nowhere_else(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    for number, target in enumerate((str(outside), f"../../../../../../../..{outside}", f"/proc/self/root{outside}")):
        for entries in ([("l/evil", "file", "x")], [("l/.wh.precious", "file", "")], [("h", "hard", "l/precious")]):

            def attempt(target: str = target, entries: list[Entry] = entries, number: int = number) -> None:
                name = f"{number}{entries[0][0].replace('/', '')}"
                try:
                    overlay(place, layer(("l", "link", target)), layer(*entries), name=name)
                except NoOverlay:
                    raise
                except GpurunError:
                    pass

            in_mount_namespace(attempt)
    assert os.listdir(outside) == ["precious"] and (outside / "precious").stat().st_nlink == 1


def test_a_layer_of_another_digest_is_not_kept(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    (wrong,) = written(place, layer(("n", "file", "1")))

    def refused() -> bool:
        (place / "bundle").mkdir(mode=0o700)
        false = Layer(wrong.archive, "sha256:" + "0" * 64)
        with pytest.raises(GpurunError, match="the content is not what the image's configuration says"):
            make_overlay(str(place / "bundle"), [*written(place, BASE), false], str(place / "store"), LIMITS)
        return nothing_left(place / "store")

    assert in_mount_namespace(refused)


def test_one_that_is_killed_while_it_unpacks(
    place: Path, in_mount_namespace: InNamespace[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer has its name before all of it is there; the bundle can be removed, and the next one is whole."""
    good = layer(("n", "file", "1"), ("m", "file", "2"))

    def interrupted() -> tuple[int, set[str], Answer, bool]:
        pid = os.fork()
        if not pid:
            made = layers_module.Unpacker._make

            def stop(self: Any, archive: Any, member: Any, *more: Any) -> None:
                if member.name == "m":
                    os._exit(9)
                made(self, archive, member, *more)

            monkeypatch.setattr(layers_module.Unpacker, "_make", stop)
            overlay(place, BASE, good, name="killed")
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kept = layers_kept(place / "store")
        assert os.listdir(place / "store/unfinished") and len(os.listdir(place / "store/bundles")) == 1
        seen = listing(overlay(place, BASE, good) / "rootfs")
        remove_bundle(str(place / "bundle"), "")
        remove_bundle(str(place / "killed"), "")
        return code, kept, seen, nothing_left(place / "store") and not (place / "killed").exists()

    base = chain_ids(written(place, BASE))[0]
    code, kept, seen, nothing = in_mount_namespace(interrupted)
    assert (code, kept, nothing) == (9, {base}, True)
    assert seen == listing(unpack(place, BASE, good))


def test_mounted_again_moved_and_copied(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    def again() -> list[object]:
        made = overlay(place, BASE)
        (made / "rootfs/own").write_text("mine")
        subprocess.run(["umount", made / "rootfs"], check=True)  # as after the machine has been started anew
        empty = os.listdir(made / "rootfs")
        mount_bundle(str(made))
        mount_bundle(str(made))
        seen = [(made / "rootfs/own").read_text(), Path("/proc/self/mounts").read_text().count(f"{made}/rootfs")]
        subprocess.run(["umount", made / "rootfs"], check=True)
        moved = made.rename(place / "moved")
        mount_bundle(str(moved))
        subprocess.run(["cp", "-a", moved, place / "copy"], check=True)
        with pytest.raises(GpurunError, match=f"is a copy of {moved}"):
            mount_bundle(str(place / "copy"))
        remove_bundle(str(place / "copy"), "")
        still = (moved / "rootfs/own").read_text()
        shutil.rmtree(moved / "overlay/upper")  # somebody's rm -r, which ends at the mount
        subprocess.run(["umount", moved / "rootfs"], check=True)
        shutil.rmtree(moved)
        remove_bundle(str(moved), str(place / "store"))
        return [empty, *seen, still, (place / "copy").exists(), nothing_left(place / "store")]

    assert in_mount_namespace(again) == [[], "mine", 1, "mine", False, True]


def test_what_remove_refuses(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    def refused() -> str:
        (place / "store").mkdir(mode=0o700)
        (place / "store/others").mkdir()
        made = overlay(place, BASE)
        (place / "plain/rootfs").mkdir(parents=True)
        for directory in (place / "plain", place / "nothing"):
            with pytest.raises(GpurunError, match=f"{directory} is no bundle that was made with --overlay"):
                remove_bundle(str(directory), str(place / "store"))
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", made / "rootfs/srv"], check=True)
        with pytest.raises(GpurunError, match=f"{made}/rootfs/srv is mounted in the bundle: unmount it first"):
            remove_bundle(str(made), "")
        subprocess.run(["umount", made / "rootfs/srv"], check=True)
        with (
            open(made / "rootfs/srv/a"),
            pytest.raises(GpurunError, match=f"{made}/rootfs is in use: a process works there"),
        ):
            remove_bundle(str(made), "")
        (place / "bind").mkdir()
        subprocess.run(["mount", "--bind", made / "rootfs", place / "bind"], check=True)
        with pytest.raises(GpurunError, match=f"{made}/rootfs is in use: process {os.getpid()}, most likely"):
            remove_bundle(str(made), "")
        subprocess.run(["umount", place / "bind"], check=True)
        made.chmod(0o777)
        with pytest.raises(GpurunError, match=f"{made}: others may write there"):
            remove_bundle(str(made), "")
        made.chmod(0o700)
        there = (made / "rootfs/srv/a").read_text()
        remove_bundle(str(made), "")
        return there

    assert in_mount_namespace(refused) == "a"
    assert os.listdir(place / "plain") == ["rootfs"] and (place / "store/others").is_dir()


def test_where_others_may_write_no_layers_are_kept(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    (place / "store").mkdir()
    (place / "store").chmod(0o777)
    with pytest.raises(GpurunError, match="others may write there"):
        in_mount_namespace(lambda: overlay(place, BASE))


def test_a_damaged_note_keeps_all_layers(place: Path, in_mount_namespace: InNamespace[Any]) -> None:
    def damaged() -> int:
        made = overlay(place, BASE)
        (place / "store/bundles/other.json").write_text("{")
        with pytest.raises(GpurunError, match=r"bundles/other\.json is damaged"):
            remove_bundle(str(made), "")
        return len(layers_kept(place / "store"))

    assert in_mount_namespace(damaged) == 1


def test_nobody_clears_away_what_is_tried(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay is tried in the directory that the next one at the store empties: under the lock of the store."""

    def tried(below: str, above: str) -> None:
        with open(place / "store/lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise NoOverlay(f"tried in {below}")

    monkeypatch.setattr(overlay_bundle, "check_overlay", tried)
    (place / "bundle").mkdir()
    with pytest.raises(NoOverlay, match="store/unfinished"):
        make_overlay(str(place / "bundle"), written(place, BASE), str(place / "store"), LIMITS)
