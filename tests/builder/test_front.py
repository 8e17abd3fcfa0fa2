"""The compiled front takes the fields of the state file from State: by name, so that their order cannot be wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.builder import front
from gpurun.engine.state import State
from tests.launcher.front import Store, run

pytestmark = pytest.mark.skipif(not front.compiler(), reason="there is no C compiler here")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield Store(tmp_path, process.pid)
        process.kill()


def build(monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...], path: Path) -> Path:
    """The program, as it is built when State has *fields*."""
    monkeypatch.setattr(front, "State", type("State", (), {"_fields": fields}))
    path.write_bytes(front.compile_front(front.compiler()))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("order", [State._fields, State._fields[::-1]], ids=["as it is", "reversed"])
def test_the_order_of_the_fields_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store, order: tuple[str, ...]
) -> None:
    done = run(build(monkeypatch, order, tmp_path / "front"), "--root", store.root, "state", "c")
    assert done.returncode == 0, done.stderr
    assert '"id": "c"' in done.stdout and f'"pid": {store.state.pid}' in done.stdout and '"owner": "root"' in done.stdout


@pytest.mark.parametrize(
    "fields",
    [(*State._fields, "another"), State._fields[:-1], tuple("renamed" if f == "streams" else f for f in State._fields)],
    ids=["one more", "one less", "renamed"],
)
def test_another_field_stops_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], fields: tuple[str, ...]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build(monkeypatch, fields, tmp_path / "front")
    assert "KNOWN_" in capfd.readouterr().err


def test_the_c_library_is_in_it(tmp_path: Path, store: Store) -> None:
    """So it starts without a dynamic loader, and asks for no version of the library."""
    program = tmp_path / "front"
    program.write_bytes(front.compile_best(front.compiler()))
    program.chmod(0o755)
    assert b"/ld-linux" not in program.read_bytes()[:4096]
    assert front.glibc_of(program.read_bytes()) == 17
    assert run(program, "--root", store.root, "state", "c").returncode == 0


def test_without_the_library_s_archive_the_loader_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store
) -> None:
    monkeypatch.setattr(front, "STATIC", ("-static-pie", "-L/nowhere", "-lnowhere"))
    program = tmp_path / "front"
    program.write_bytes(front.compile_best(front.compiler()))
    program.chmod(0o755)
    assert b"/ld-linux" in program.read_bytes()[:4096]
    assert run(program, "--root", store.root, "state", "c").returncode == 0
