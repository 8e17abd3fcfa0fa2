"""Profiles of AppArmor for tests, and what the kernel logs of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.native.kernel_log import kernel_log

#: Loads a profile: its name, its text after the name, and what comes before it; also in the place of the one of that name.
Load = Callable[..., str]
#: Under which user namespaces are mediated (AppArmor 4, Linux 6.7).
ABI = "abi <abi/4.0>,\n"
PARSER = "apparmor_parser"
_FEATURES = Path("/sys/kernel/security/apparmor/features")


def mediates_user_namespaces() -> bool:
    """Whether kernel and parser know the rule ``userns``."""
    try:
        return "userns_create" in (_FEATURES / "namespaces/mask").read_text() and Path("/etc/apparmor.d/abi/4.0").exists()
    except OSError:
        return False


def loader(directory: Path) -> Iterator[Load]:
    """For a fixture: a :data:`Load` whose profiles are taken away in the end."""
    loaded = set()

    def parse(name: str, text: str, before: str = "") -> str:
        (directory / name).write_text(f"{before}profile {name} {text}")
        subprocess.run([PARSER, "-rK", str(directory / name)], check=True, timeout=60)
        loaded.add(name)
        return name

    yield parse
    for name in loaded:
        subprocess.run([PARSER, "-R", str(directory / name)], check=True, timeout=60)


def package_rules() -> str:
    """The flags and rules of the profile that the package brings for gpurun."""
    text = (Path(__file__).resolve().parents[2] / "debian/apparmor/gpurun").read_text()
    return text[text.index("flags=(unconfined)") :].replace("include if exists <local/gpurun>", "")


def denials(mark: str) -> set[tuple[str, ...]]:
    """What the kernel has logged of AppArmor after *mark*: (verdict, operation, profile, name)."""
    found: set[tuple[str, ...]] = set()
    for line in kernel_log(mark):
        words = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if words.get("apparmor") in ("DENIED", "ALLOWED"):
            found.add((words["apparmor"], words["operation"], words["profile"], words.get("name", "")))
    return found
