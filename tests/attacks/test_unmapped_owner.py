"""A file of another user of the host, where gpurun looks for its own, in a user namespace that shows both as nobody.

Each place is tried first with a file that is ours: that one is taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpurun
from gpurun.engine import state as store
from tests.conftest import REPOSITORY
from tests.linux.test_owners import AS_NOBODY, MALLORY, pytestmark  # noqa: F401

SRC = str(Path(gpurun.__file__).parents[1])

#: Each prints whether what is at argv[1] was taken.  GpurunError: it was refused.
PLACES = {
    "a state directory": "from gpurun.engine.state import load; print(load(where, 'c').id == 'c')",
    "a state root": (
        "import os; from gpurun.engine.state import make_directory; "
        "print(bool(make_directory(where, 'new'))); os.rmdir(where + '/new')"
    ),
    "leases": "from gpurun.gpu.leases.store import Store; print(Store(where + '/leases').own_leases() == ())",
    "a journal": "from gpurun.ns.journal_disk import find_earlier; print(bool(find_earlier('rootfs')))",
    "certificates of metrics": "from gpurun.metrics.web_files import _read; print(bool(_read(where + '/cdi/v.json')))",
    "CRIU's settings": (
        "import os; from gpurun.engine.checkpoint.criu_options import _problem; path = where + '/cdi/v.json'; "
        "print('belongs to' not in _problem(path, os.stat(path), '/none'))"
    ),
    "a configuration of MIG": (
        "from gpurun.gpu.nvidia.mig.config import _check; import os; "
        "print(_check(os.open(where + '/cdi/v.json', os.O_RDONLY), 'v.json') is None)"
    ),
    "the list of all containers": "from gpurun.commands.all_containers import is_ours; print(is_ours(where))",
}
SCRIPT = """
import sys
from gpurun.errors import GpurunError
where = sys.argv[1]
try:
    {}
except GpurunError as e:
    print(f"False: {{e}}")
"""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A directory with something for each of :data:`PLACES`: its owner may be anybody yet."""
    tmp_path.chmod(0o755)
    root = tmp_path / "x"
    files = {
        "journals/.local/state/gpurun/journals/a-boot/rootfs.container": b"",
        "cdi/v.json": json.dumps(
            {"cdiVersion": "0.5.0", "kind": "v.com/x", "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}
        ).encode(),
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "leases").mkdir()
    state = store.State("c", "/bundle", "/rootfs", "/none", True, created="2026-01-01T00:00:00Z")
    (root / "c").mkdir()
    store.save(str(root), state)
    return root


def give(where: Path, uid: int) -> None:
    """Everything to *uid*, for everybody to read, and a state root in which everybody may make a container."""
    for path in (where, *where.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o755 if path.is_dir() else 0o644)
    where.chmod(0o777)


@pytest.mark.parametrize("place", list(PLACES))
def test_what_is_another_users_is_not_taken(where: Path, place: str) -> None:
    answers = []
    environment = {**os.environ, "PYTHONPATH": SRC, "HOME": f"{where}/journals", "XDG_STATE_HOME": ""}
    for uid in (0, MALLORY):
        give(where, uid)
        command = [*AS_NOBODY, sys.executable, "-c", SCRIPT.format(PLACES[place]), str(where)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        answers.append(done.stdout.partition("\n")[0] + done.stderr)
    assert answers[0] == "True" and answers[1].startswith("False"), answers


CDI = SCRIPT.format("from gpurun.cdi.files import read_spec_file; print(bool(read_spec_file(where + '/cdi/v.json')))")


@pytest.mark.parametrize("mode", [0o1777, 0o775])
@pytest.mark.parametrize("before", [AS_NOBODY, ("unshare", "-Ur")])
def test_a_cdi_file_where_anybody_can_make_one(where: Path, before: tuple[str, ...], mode: int) -> None:
    """The host root's files in /etc/cdi look the same, but nobody else can make one there."""
    give(where, MALLORY)
    answers = []
    for directory_mode in (0o755, mode):
        (where / "cdi").chmod(directory_mode)
        command = [*before, sys.executable, "-c", CDI, str(where)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC})
        answers.append(done.stdout.partition("\n")[0] + done.stderr)
    assert answers[0] == "True" and "may be written by others than root" in answers[1], answers


@pytest.mark.parametrize("program", ["gpurun", "gpurun-fast"])
def test_the_commands(where: Path, program: str) -> None:
    path = REPOSITORY / "build" / program
    if not path.exists():
        pytest.skip(f"{path} is not built")
    said = []
    for uid in (0, MALLORY):
        give(where, uid)
        command = [*AS_NOBODY, str(path), "--root", str(where), "state", "c"]
        done = subprocess.run(command, capture_output=True, text=True)
        said.append((done.returncode, done.stdout[:1], done.stderr))
    assert said[0][:2] == (0, "{"), said
    assert said[1][0] == 1 and "gpurun does not use the state of another user" in said[1][2], said
