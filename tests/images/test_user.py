"""`config.User` of an image, by the passwd and group of the image."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.images.config import user

PASSWD = "root:x:0:0::/:/bin/sh\nalice:x:1000:100::/:/bin/sh\nodd:x:²:9:\nhuge:x:" + "9" * 5000 + ":9:\n7:x:none:9:\n"
GROUP = "wheel:x:10:alice\nodd:x:²:alice\nbad:x:4294967296:alice\n"


def read(path: str) -> str:
    return {"/etc/passwd": PASSWD, "/etc/group": GROUP}[path]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", {"uid": 0, "gid": 0}),
        ("alice", {"uid": 1000, "gid": 100, "additionalGids": [10]}),
        ("1000:wheel", {"uid": 1000, "gid": 10}),
        ("5:6", {"uid": 5, "gid": 6}),
        ("7", {"uid": 7, "gid": 9}),
    ],
)
def test_users(text: str, made: dict[str, object]) -> None:
    assert user(text, read) == made


@pytest.mark.parametrize(
    "text",
    ["nobody", "²", "9" * 5000, "4294967295", "4294967296", "odd", "huge", "0:²", "0:odd", "0:bad", "0:" + "9" * 5000],
)
def test_what_is_no_user(text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.User"):
        user(text, read)
