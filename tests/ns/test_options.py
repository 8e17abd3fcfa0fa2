"""Words of mount options: which flags they set and clear, and what is left for the file system."""

from __future__ import annotations

import pytest

from gpurun.linux import mount as m
from gpurun.ns.options import MountOptions, likely_option, option_names, parse_options, split_escaped

RO, NOSUID, NODEV, NOEXEC = m.MOUNT_ATTR_RDONLY, m.MOUNT_ATTR_NOSUID, m.MOUNT_ATTR_NODEV, m.MOUNT_ATTR_NOEXEC
NOSYMFOLLOW, ATIME = m.MOUNT_ATTR_NOSYMFOLLOW, m.MOUNT_ATTR__ATIME
#: What a bind mount can lose of its source's.
ALL = RO | NOSUID | NODEV | NOEXEC | NOSYMFOLLOW


def parse(text: str) -> MountOptions:
    return parse_options(tuple(text.split()))


@pytest.mark.parametrize("words", ["", "defaults", "defaults defaults"])
def test_nothing_is_changed(words: str) -> None:
    assert parse(words) == MountOptions() == parse_options(("",))


@pytest.mark.parametrize(
    ("words", "set_", "clear"),
    [
        ("ro", RO, 0),
        ("rw", 0, RO),
        ("ro rw", 0, RO),
        ("rw ro", RO, 0),
        ("nosuid noexec nodev", NOSUID | NOEXEC | NODEV, 0),
        ("nosuid suid noexec", NOEXEC, NOSUID),
        ("nosymfollow", NOSYMFOLLOW, 0),
        ("symfollow exec dev", 0, NOSYMFOLLOW | NOEXEC | NODEV),
    ],
)
def test_the_later_word_wins(words: str, set_: int, clear: int) -> None:
    made = parse(words)
    assert (made.attr_set, made.attr_clr, made.replaced) == (set_, clear, ALL & ~set_)
    assert (made.rec_set, made.rec_clr) == (0, 0)


@pytest.mark.parametrize(
    ("words", "set_", "clear"),
    [
        ("noatime", m.MOUNT_ATTR_NOATIME, ATIME | m.MOUNT_ATTR_NODIRATIME),
        ("relatime", m.MOUNT_ATTR_RELATIME, ATIME | m.MOUNT_ATTR_NODIRATIME),
        ("strictatime", m.MOUNT_ATTR_STRICTATIME, ATIME | m.MOUNT_ATTR_NODIRATIME),
        ("noatime strictatime", m.MOUNT_ATTR_STRICTATIME, ATIME | m.MOUNT_ATTR_NODIRATIME),
        ("nodiratime", m.MOUNT_ATTR_RELATIME | m.MOUNT_ATTR_NODIRATIME, ATIME),
        ("noatime nodiratime", m.MOUNT_ATTR_NOATIME | m.MOUNT_ATTR_NODIRATIME, ATIME),
        ("noatime atime", 0, 0),
        ("nodiratime diratime", 0, 0),
        ("nostrictatime norelatime", 0, 0),
    ],
)
def test_times(words: str, set_: int, clear: int) -> None:
    """Of none nothing is changed: mount(2) keeps the times of the source then."""
    made = parse(words)
    assert (made.attr_set, made.attr_clr, made.replaced) == (set_, clear, ALL)


@pytest.mark.parametrize(
    ("words", "set_", "clear"),
    [
        ("rro", RO, 0),
        ("rro rrw", 0, RO),
        ("rnosuid rnodev rnoexec", NOSUID | NODEV | NOEXEC, 0),
        ("rnoatime", m.MOUNT_ATTR_NOATIME, ATIME),
        ("ratime", 0, ATIME),
    ],
)
def test_words_for_the_whole_tree(words: str, set_: int, clear: int) -> None:
    made = parse(words)
    assert (made.rec_set, made.rec_clr) == (set_, clear)
    assert (made.attr_set, made.attr_clr, made.replaced) == (0, 0, 0), "they say nothing of the mount itself"


def test_propagation_keeps_its_order() -> None:
    assert parse("rslave shared").propagation == ((m.MS_SLAVE, True), (m.MS_SHARED, False))
    assert parse("private runbindable").propagation == ((m.MS_PRIVATE, False), (m.MS_UNBINDABLE, True))


def test_flags_of_the_file_system() -> None:
    assert parse("sync dirsync silent lazytime").superblock == ("sync", "dirsync", "silent", "lazytime")
    assert parse("sync async silent loud mand nomand").superblock == ()


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("bind", {"bind"}),
        ("rbind", {"bind", "recursive"}),
        ("tmpcopyup", {"copy_up"}),
        ("copy-symlink", {"copy_symlink"}),
        ("remount", {"remount"}),
    ],
)
def test_words_that_are_no_flag(word: str, fields: set[str]) -> None:
    made = parse(word)
    switches = {"bind", "recursive", "copy_up", "copy_symlink", "remount"}
    assert {name for name in switches if getattr(made, name)} == fields and made.data == ()


@pytest.mark.parametrize(
    ("word", "kind", "ranges"),
    [
        ("idmap", "idmap", ""),
        ("ridmap", "ridmap", ""),
        ("idmap=uids=0-1-10", "idmap", "uids=0-1-10"),
        ("ridmap=x", "ridmap", "x"),
    ],
)
def test_id_maps(word: str, kind: str, ranges: str) -> None:
    made = parse(word)
    assert (made.idmap, made.idmap_ranges, made.data) == (kind, ranges, ())


def test_what_is_not_known_is_the_file_systems_in_its_order() -> None:
    made = parse("size=64k nosuid mode=755 rfoo idmapped")
    assert made.data == ("size=64k", "mode=755", "rfoo", "idmapped") and made.attr_set == NOSUID


def test_every_name_is_understood() -> None:
    assert [name for name in option_names() if parse(name).data] == []
    assert len(option_names()) == 63 and "" not in option_names()


def test_likely_words() -> None:
    assert likely_option("nosiud") == ' (did you mean "nosuid"?)'
    assert likely_option("sise=4k", ("size",)) == ' (did you mean "size"?)'
    assert likely_option("quux") == ""


def test_separators_behind_a_backslash_do_not_count() -> None:
    assert split_escaped(r"a:b\:c:d", ":") == ["a", r"b\:c", "d"]
    assert (
        split_escaped(r"a\\:b", ":") == [r"a\\", "b"]
        and split_escaped("", ":") == [""]
        and split_escaped("a\\", ":") == ["a\\"]
    )
