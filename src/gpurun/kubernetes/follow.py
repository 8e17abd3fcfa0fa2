"""Objects of the API server, followed: listed once, then watched, so that a node asks for nothing while nothing changes.

After a failure it is asked again after a time that doubles and is spread at random: a thousand nodes whose API server comes
back do not come at the same moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.kubernetes.api import Api, ApiError, Object
from gpurun.kubernetes.pauses import Pauses

#: A watch that a server ends sooner (seconds) counts as a failure.
_SHORT_S = 1.0


def follow(
    api: Api,
    what: str,
    selector: str,
    stop: threading.Event,
    begun: Callable[[list[Object]], None],
    told: Callable[[str, Object], None],
    failed: Callable[[GpurunError], None],
) -> None:
    """Call *begun* with all objects, then *told* with (``ADDED``, ``MODIFIED`` or ``DELETED``, object), until *stop* is set.

    *what* and *selector* (of fields) are those of :meth:`Api.changes`.  *begun* is called again when changes may have been
    missed, *failed* with each error, after which it goes on.  Returns some minutes after *stop*, unless something changes:
    for a daemon thread.
    """
    pauses, version = Pauses(2.0, 60.0), ""
    while not stop.is_set():
        began = time.monotonic()
        try:
            if not version:
                objects, version = api.listed(what, selector)
                begun(objects)
            for kind, one in api.changes(what, version, stop, selector):
                version = str(one["metadata"].get("resourceVersion") or version)
                pauses.good()
                if kind != "BOOKMARK":
                    told(kind, one)
        except GpurunError as e:
            log.debug(str(e))
            failed(e)
            if isinstance(e, ApiError) and e.status == 410:  # what has changed since is no longer known
                version = ""
        else:
            if time.monotonic() - began > _SHORT_S:
                pauses.good()
                continue
        stop.wait(pauses.next())
