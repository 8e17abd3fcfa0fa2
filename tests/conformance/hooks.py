"""Hooks for tests: a static shell that writes down in which order, where and with what it was called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.native.bundle import Bundle

KINDS = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
AT_CREATE = ["prestart", "createRuntime", "createContainer"]
IN_RUNTIME = ["prestart", "createRuntime", "poststart", "poststop"]
IN_CONTAINER = ["createContainer", "startContainer"]

Hook = dict[str, Any]


class Recorder:
    """Makes hooks of a bundle and reads what they have written.

    *directory* is on the host; hooks that see only the container's files find it at ``/tmp``.
    """

    def __init__(self, directory: Path, place: Path) -> None:
        self.directory, self.place = directory, place

    def hook(self, kind: str, name: str = "", script: str = "", **more: Any) -> Hook:
        """A hook that notes *name* (default: *kind*) with the state it is given, and then runs *script*."""
        inside = kind == "startContainer"
        path = "/bin/busybox" if inside else str(self.place / "busybox")
        where = "/tmp" if inside else str(self.directory)
        note = 'echo "$2" >>$1/order; cat >"$1/$2.state"; ' + (script or ":")
        return {"path": path, "args": ["busybox", "sh", "-c", note, "sh", where, name or kind], **more}

    def install(self, bundle: Bundle, *hooks: tuple[str, Hook]) -> Bundle:
        """*bundle* with *hooks*, and with the record at ``/tmp``."""
        lists: dict[str, list[Hook]] = {}
        for kind, hook in hooks:
            lists.setdefault(kind, []).append(hook)
        bundle.config["hooks"] = lists
        return bundle.mount("/tmp", str(self.directory), "bind")

    def each(self, bundle: Bundle, *kinds: str, script: str = "") -> Bundle:
        """*bundle* with one hook of each of *kinds*, all with the same script."""
        return self.install(bundle, *[(kind, self.hook(kind, script=script)) for kind in kinds])

    @property
    def order(self) -> list[str]:
        path = self.directory / "order"
        return path.read_text().split() if path.exists() else []

    def text(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ""

    def state(self, name: str) -> dict[str, Any]:
        return json.loads(self.text(f"{name}.state"))  # type: ignore[no-any-return]
