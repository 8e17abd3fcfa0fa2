"""How pytest-xdist deals the tests out to its workers: whole files, because a file's module fixture may start daemons.

Files that share a session fixture that is slow to make stay together, or each worker would make it again.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

#: The beginnings of the paths of files that one worker runs, and why.
TOGETHER = {
    "tests/launcher/": "the compiled programs of its conftest.py take twenty seconds",
}

#: An operation of a client (tests/clients/test_operations.py): each client has a bed with daemons of its own.
CLIENT = re.compile(r"\[(docker|podman|ctr|cri): ")


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # the package has no types
    """The files with the most tests first, each to the worker that has nothing left to do."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if client := CLIENT.search(test):
            return f"{file}[{client[1]}]"
        return next((prefix for prefix in TOGETHER if file.startswith(prefix)), file)
