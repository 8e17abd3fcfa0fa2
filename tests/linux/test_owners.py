"""Whose a file is, in a real user namespace whose only user has the number that stands for all who have none there.

Our user has the id 65534 in the namespace, as a container that runs as nobody has.  A file of another user of the host
shows the same number.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpurun

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="gives files to another user: root")

#: The overflow id; a user of the host who is nobody in the namespace; the caller's id there.
NOBODY, MALLORY = 65534, 4242
AS_NOBODY = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
SRC = str(Path(gpurun.__file__).parents[1])
WITHOUT_MAPS = ("unshare", "--user")

ASK = """
import json, os, sys
from gpurun.linux.owners import is_hidden, is_own, is_own_or_roots
found = {}
if sys.argv[1] != "-":
    os.setgroups([])
    os.setresgid(*[int(sys.argv[1])] * 3)
    os.setresuid(*[int(sys.argv[1])] * 3)
for path in sys.argv[2:]:
    seen = os.lstat(path)
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    found[path] = (seen.st_uid, is_own(seen, path), is_own(seen, fd), is_own_or_roots(seen, fd), is_hidden(seen.st_uid))
print(json.dumps(found))
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A file and a directory of ours, and another user's, which everybody can read."""
    found = []
    for user, uid in (("ours", 0), ("theirs", MALLORY)):
        for name in (f"{user}-file", f"{user}-directory"):
            path = tmp_path / name
            path.mkdir(0o755) if name.endswith("directory") else path.write_text("x")
            os.chown(path, uid, uid)
            found.append(str(path))
    link = tmp_path / "link"
    link.symlink_to("ours-file")
    tmp_path.chmod(0o755)
    return [*found, str(link)]


def ask(files: list[str], *before: str, user: str = "-") -> dict[str, list[object]]:
    """What :data:`ASK` finds: name → (owner, asked by the path, by a descriptor, whether ours or root's, whether hidden)."""
    directory = os.path.dirname(files[0])  # which another user could not reach by its path
    names = [os.path.basename(path) for path in files]
    command = [*before, sys.executable, "-c", ASK, user, *names]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=directory, env={**os.environ, "PYTHONPATH": SRC}
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("before", [AS_NOBODY, WITHOUT_MAPS])
def test_a_user_who_looks_like_all_who_have_no_number(files: list[str], before: tuple[str, ...]) -> None:
    assert ask(files, *before) == {
        "ours-file": [NOBODY, True, True, True, True],
        "ours-directory": [NOBODY, True, True, True, True],
        "theirs-file": [NOBODY, False, False, False, True],
        "theirs-directory": [NOBODY, False, False, False, True],
        "link": [NOBODY, False, False, False, True],
    }


def test_root_of_a_user_namespace(files: list[str]) -> None:
    found = ask(files, "unshare", "--user", "--map-root-user")
    assert found["ours-file"] == found["ours-directory"] == found["link"] == [0, True, True, True, False]
    assert found["theirs-file"] == found["theirs-directory"] == [NOBODY, False, False, False, True]


def test_root_of_the_host(files: list[str]) -> None:
    found = ask(files)
    assert found["ours-file"] == found["link"] == [0, True, True, True, False]
    assert found["theirs-file"] == found["theirs-directory"] == [MALLORY, False, False, False, False]


def test_nobody_of_the_host_is_a_user_like_others(tmp_path: Path, files: list[str]) -> None:
    os.lchown(files[0], NOBODY, NOBODY)
    os.lchown(files[-1], NOBODY, NOBODY)
    found = ask(files, user=str(NOBODY))
    assert found["ours-file"] == found["link"] == [NOBODY, True, True, True, False]
    assert found["ours-directory"] == [0, False, False, True, False]
