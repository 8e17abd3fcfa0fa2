"""What is written for ldconfig and for musl's loader."""

from __future__ import annotations

import pytest

from gpurun.cdi.edits import CacheEntry, ContainerEdits, combine, conf_files
from gpurun.formats.ldconf import musl_path


def entries(*paths: str) -> tuple[CacheEntry, ...]:
    return tuple([CacheEntry(path.rpartition("/")[2], path, 0x303) for path in paths])


def test_own_directories_come_first_and_system_directories_last() -> None:
    files = conf_files(entries("/opt/gpu/a.so.1", "/usr/lib64/b.so.1", "/opt/gpu/c.so.1", "/usr/lib/x86_64-linux-gnu/d.so"))
    assert {f.path: f.content for f in files} == {
        "/etc/ld.so.conf.d/00-gpurun.conf": b"/opt/gpu\n",
        "/etc/ld.so.conf.d/zz-gpurun.conf": b"/usr/lib64\n/usr/lib/x86_64-linux-gnu\n",
    }
    assert all(f.mode == 0o644 and f.reason for f in files)


def test_edits_of_two_sources_have_the_directories_of_both() -> None:
    one, two = entries("/opt/one/a.so.1"), entries("/opt/two/b.so.1")
    both = combine(*[ContainerEdits(ldcache=e, image_files=conf_files(e)) for e in (one, two)])
    assert [f.content for f in both.image_files] == [b"/opt/one\n/opt/two\n"]


def test_no_library_no_file() -> None:
    assert conf_files(()) == ()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (None, b"/lib:/usr/local/lib:/usr/lib\n/opt/gpu\n"),
        (b"\n", b"/lib:/usr/local/lib:/usr/lib\n/opt/gpu\n"),
        (b"/a:/b", b"/a:/b\n/opt/gpu\n"),
        (b"/a\n/b\n", b"/a\n/b\n/opt/gpu\n"),
        (b"/a:/opt/gpu\n", None),
        (b"\xff", b"\xff\n/opt/gpu\n"),
    ],
)
def test_musls_path(image: bytes | None, expected: bytes | None) -> None:
    assert musl_path(image, ("/opt/gpu",)) == expected
