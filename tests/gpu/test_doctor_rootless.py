"""``gpurun gpu doctor --rootless``: each thing that a user may lack, with the command that mends it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpurun.gpu import doctor_rootless
from gpurun.gpu.doctor_rootless import examine_rootless
from gpurun.gpu.host import access

UID = 4321


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with all that a user needs, and the user *me*."""
    files = {
        "proc/sys/user/max_user_namespaces": "1000\n",
        "usr/bin/newuidmap": "",
        "usr/bin/newgidmap": "",
        "etc/subuid": "me:100000:65536\n",
        "etc/subgid": f"{UID}:100000:65536\n",
        "var/lib/systemd/linger/me": "",
        "run/user/4321/bus": "",
        "dev/fuse": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("newuidmap", "newgidmap"):
        (tmp_path / "usr/bin" / name).chmod(0o4755)
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("me", "x", UID, UID, "", "/", "/bin/sh")))
    return tmp_path


def found(root: Path, env: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    given = {"XDG_RUNTIME_DIR": f"/run/user/{UID}"} if env is None else env
    return {one.subject: (one.verdict, one.text) for one in examine_rootless(given, (), str(root))}


def test_a_host_that_has_all(root: Path) -> None:
    said = found(root)
    del said["cgroup delegation"]  # this host's own
    assert {subject: verdict for subject, (verdict, _) in said.items()} == dict.fromkeys(
        ("user namespaces", "newuidmap", "newgidmap", "/etc/subuid", "/etc/subgid", "XDG_RUNTIME_DIR", "linger", "fuse"),
        "ok",
    )


@pytest.mark.parametrize(
    ("path", "text", "subject", "verdict", "words"),
    [
        ("proc/sys/user/max_user_namespaces", "0\n", "user namespaces", "fail", "user.max_user_namespaces=15000`"),
        (
            "proc/sys/kernel/unprivileged_userns_clone", "0\n", "user namespaces", "fail",
            "`sysctl -w kernel.unprivileged_userns_clone=1`",
        ),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "user namespaces", "fail",
            "`apparmor_parser -r /etc/apparmor.d/gpurun`",
        ),
        ("usr/bin/newuidmap", None, "newuidmap", "note", "`apt install uidmap`"),
        ("etc/subuid", "you:100000:65536\n", "/etc/subuid", "note", "no ids for me, images use 65536: `usermod --add-sub"),
        ("etc/subgid", "me:100000:10\n", "/etc/subgid", "note", "10 ids for me, images use 65536: `usermod --add-sub"),
        ("var/lib/systemd/linger/me", None, "linger", "note", "`loginctl enable-linger me`"),
        ("dev/fuse", None, "fuse", "note", "`modprobe fuse`"),
    ],
)  # fmt: skip
def test_what_a_host_lacks(root: Path, path: str, text: str | None, subject: str, verdict: str, words: str) -> None:
    file = root / path
    if text is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert found(root)[subject][0] == verdict and words in found(root)[subject][1]


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("", "100000-165535"),
        ("you:100000:65536\n", "165536-231071"),
        ("they:165536:65536\nyou:100000:65536\nme:290000:10\n", "290010-355545"),
        ("you:1000:10\nthey:500000:65536\nnot a line\nyou:x:1\n", "100000-165535"),
    ],
)
def test_the_range_that_is_named_is_free(root: Path, text: str, free: str) -> None:
    """usermod gives ids of another user as well, and the containers of both could then reach each other's files."""
    for name in ("subuid", "subgid"):
        (root / "etc" / name).write_text(text)
        assert f"`usermod --add-{name}s {free} me`" in found(root)[f"/etc/{name}"][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another group takes root to make")
def test_fuse_of_a_group_without_a_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(root / "dev/fuse", 0, 64992)
    monkeypatch.setattr(os, "access", lambda path, *_, **__: not str(path).endswith("/dev/fuse"))
    assert "only by the group 64992" in found(root)["fuse"][1]


def test_ubuntus_sysctl_and_the_packages_profile(root: Path) -> None:
    (root / "proc/sys/kernel").mkdir()
    (root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    (root / "etc/apparmor.d").mkdir()
    (root / "etc/apparmor.d/gpurun").write_text("profile gpurun /usr/bin/gpurun flags=(unconfined) { userns, }\n")
    assert found(root)["user namespaces"][0] == "ok"


def test_a_mapper_without_its_bit(root: Path) -> None:
    (root / "usr/bin/newgidmap").chmod(0o755)
    verdict, text = found(root)["newgidmap"]
    assert verdict == "fail" and "`chmod u+s /usr/bin/newgidmap` or `setcap cap_setgid+ep /usr/bin/newgidmap`" in text


def test_a_session_by_su(root: Path) -> None:
    verdict, text = found(root, {})["XDG_RUNTIME_DIR"]
    assert verdict == "note" and f"`export XDG_RUNTIME_DIR=/run/user/{UID}`" in text
    (root / "run/user/4321").rename(root / "run/user/1")
    verdict, text = found(root, {})["XDG_RUNTIME_DIR"]
    assert verdict == "fail" and "`loginctl enable-linger me`" in text


def test_a_hybrid_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpurun.cgroup import tree

    monkeypatch.setattr(tree, "find_tree", lambda: tree.Tree("/nowhere", (), ("memory", "pids")))
    verdict, text = found(root)["cgroup delegation"]
    assert verdict == "note" and "cgroup v1 has memory, pids (a hybrid host)" in text and "Delegate" not in text


def test_a_user_who_is_not_logged_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what to do here, and nothing of an option of `run`."""
    from gpurun.cgroup import tree

    monkeypatch.setattr(tree, "find_tree", lambda: tree.Tree("/nowhere", (), ()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root / "none"))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    verdict, text = found(root)["cgroup delegation"]
    assert verdict == "note" and "`loginctl enable-linger me`" in text and "--systemd-cgroup" not in text, text


def test_root_is_told_to_ask_as_the_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "call it as that user" in found(root)["user"][1]


def nodes(tmp_path: Path, mode: int) -> list[str]:
    path = tmp_path / "nvidia0"
    path.write_text("")
    os.chown(path, 0, 0)
    path.chmod(mode)
    return [str(path)]


@pytest.mark.skipif(os.geteuid() != 0, reason="nodes of another user take root to make")
def test_nodes_that_the_user_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False]
    monkeypatch.setattr("posix.access", lambda *_, **how: answers[0])
    monkeypatch.setattr("posix.geteuid", lambda: UID)
    path = str(tmp_path / "nvidia0")
    assert access.closed_nodes(nodes(tmp_path, 0o666)) == ""
    text = access.closed_nodes(nodes(tmp_path, 0o660))
    assert text.startswith(f"{path}: the group root can (mode 0660), this user is not in it: `usermod -aG root USER`")
    assert "podman --group-add keep-groups" in text
    assert "NVreg_DeviceFileMode=0666" in access.closed_nodes(nodes(tmp_path, 0o600))
    render = tmp_path / "renderD128"
    render.write_text("")
    os.chown(render, 0, 64992)
    render.chmod(0o660)
    assert "it has no name: `groupadd -g 64992 NAME`, `usermod -aG NAME USER`" in access.closed_nodes([str(render)])
    render.chmod(0o600)
    text = access.closed_nodes([str(render)])
    assert "a rule of udev's" in text and "modprobe" not in text
    answers[0] = True  # a member
    assert access.closed_nodes(nodes(tmp_path, 0o660)) == ""
    assert "does not keep the caller's groups" in access.closed_nodes(nodes(tmp_path, 0o660), keeps_groups=False)
    verdicts = {one.subject: one.verdict for one in doctor_rootless.examine_rootless({}, nodes(tmp_path, 0o666))}
    assert verdicts["device nodes"] == "ok"
