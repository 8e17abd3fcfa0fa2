"""One operation of a client with several runtimes at once: what each came to, and what gpurun says beside runc."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.clients.bed import ClientBed
from tests.clients.differences import compare
from tests.clients.operation import Operation
from tests.clients.test_operations import perform

#: Of the bed's runtimes, by their names there: those under test; the one whose lines theirs are compared with.
OURS, REFERENCE = ("gpurun", "fast"), "peer"
#: A client's own race is not the runtime's: what one of them does in each of these it does.
ATTEMPTS = 2


def hold_to(bed: ClientBed, operation: Operation, names: Sequence[str], record: Callable[[str, object], None]) -> None:
    """Do *operation* with each runtime of *names*, and fail where ours are not as the others.

    Of a runtime of ours: where another one passes it passes, and where the reference passes its lines are the same but for
    the differences that are listed.  Where none passes, the operation needs a mark with the reason.
    """
    for _ in range(ATTEMPTS):
        found = dict(zip(names, perform(bed, operation, tuple(names)), strict=True))
        passed = [name for name, (_, faults) in found.items() if not faults]
        wrong = [f"{name}: {fault}" for name in OURS if passed and name in found for fault in found[name][1]]
        if not passed:
            wrong = ["no runtime does it: if none can, say so by a mark of the operation"]
        reasons: dict[str, None] = {}
        for name in OURS:
            if name in passed and REFERENCE in passed:
                compared = compare(f"{operation.engine}: {operation.name}", found[name][0], found[REFERENCE][0])
                wrong += [line.replace("gpurun:", f"{name}:", 1) for line in compared.unlisted]
                reasons |= dict.fromkeys(compared.listed)
        if not wrong:
            break
    for name in names:
        record(name, "pass" if name in passed else "fail")
    record("reasons", list(reasons))
    if wrong:
        said = [line for name in names for line in (f"--- {name}", *found[name][0])]
        pytest.fail("\n".join([*wrong, *said]), pytrace=False)
