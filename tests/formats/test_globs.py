"""Patterns for names: what they match, beside the standard library, and paths in a tree."""

from __future__ import annotations

import fnmatch
import random

import pytest

from gpurun.formats.globs import expand, is_pattern, matches, matches_path


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("nvhost-gpu", "nvhost-*", True),
        ("nvhost-gpu", "nvhost", False),
        ("abc", "a?c", True),
        ("ac", "a?c", False),
        ("lib5.so", "lib[0-9].so", True),
        ("libx.so", "lib[^0-9].so", True),
        ("lib5.so", "lib[!0-9].so", False),
        ("a]", "a[]]", True),
        ("a-", "a[x-]", True),
        ("a*", r"a\*", True),
        ("ab", r"a\*", False),
        ("a", "a[", False),
        ("a[", "a[", False),
        ("a", "a\\", False),
        ("", "*", True),
        ("", "?", False),
    ],
)
def test_matches(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("/foo/bar/libsomething.so", "*.so", False),
        ("libsomething.so", "*.so", True),
        ("libsomething.so.1", "*.so.[0-9]", True),
        ("libsomething.so.1.2.3", "*.so.[0-9]", False),
        ("/foo/bar/libsomething.so", "**/*.so", True),
        ("libsomething.so", "**/*.so", True),
        ("libsomething.so.1", "**/*.so.[0-9]", True),
        ("libsomething.so.1.2.3", "**/*.so.[0-9]", False),
        ("/foo/bar/lib.so", "/foo/*/lib.so", True),
        ("/foo/b/r/lib.so", "/foo/*/lib.so", False),
        ("/foo/bar", "/foo?bar", False),
        ("/foo/bar", "/foo[^x]bar", True),
        ("/foo/bar", "/foo/bar", True),
        ("/foo/bar", "bar", False),
        ("/foo/bar", "**/foo/bar", False),
        ("/foo/bar", "**/**/bar", False),
        ("/foo/bar", "**", False),
        ("/foo/bar", "**/b[", False),
        ("/", "*", False),
        ("", "*", True),
    ],
)
def test_matches_paths_as_gos_filepath_match(path: str, pattern: str, expected: bool) -> None:
    assert matches_path(path, pattern) is expected


def test_like_the_standard_library() -> None:
    chosen = random.Random(6)
    pairs = [
        ("".join(chosen.choices("ab", k=chosen.randrange(6))), "".join(chosen.choices("ab*?", k=5))) for _ in range(3000)
    ]
    told = [matches(name, pattern) for name, pattern in pairs]
    assert told == [fnmatch.fnmatchcase(name, pattern) for name, pattern in pairs]
    assert {True, False} == set(told)


def test_a_pattern_made_to_take_long_does_not() -> None:
    assert not matches("a" * 2000, "*a" * 500 + "b")
    assert not matches_path("a" * 300, "*a" * 100 + "b")


def test_paths() -> None:
    tree = {"/": ["dev", "etc"], "/dev": ["nvhost-a", "nvhost-b", "nvmap", ".nvhost-c", "dri"], "/dev/dri": ["card0"]}

    def expanded(pattern: str) -> list[str]:
        return expand(pattern, lambda directory: tree.get(directory, []))

    assert expanded("/dev/nvhost-*") == ["/dev/nvhost-a", "/dev/nvhost-b"]
    assert expanded("/*/nvmap") == ["/dev/nvmap", "/etc/nvmap"], "what is not there is left out by whoever looks"
    assert expanded("/d*/d*/card?") == ["/dev/dri/card0"]
    assert expanded("/dev/.nv*") == ["/dev/.nvhost-c"]
    assert expanded("/nowhere/*") == []
    assert [is_pattern(p) for p in ("/a/b", "/a/*", "/a?", "/[a]", "/a\\*")] == [False, True, True, True, True]
    assert expanded("/*") == ["/dev", "/etc"]
