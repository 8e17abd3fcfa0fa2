"""The API server, through the kubernetes client: plain dicts, one kind of error, watches that go on.

Only what all versions of the client from 22 on have in the same way is used: calls for custom objects, whose paths are those
of every API group, and the core API's calls for nodes.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

from gpurun.errors import GpurunError

#: Versions of resource.k8s.io whose objects look the same, the best one first.
RESOURCE_GROUP, RESOURCE_VERSIONS = "resource.k8s.io", ("v1", "v1beta2")
#: The namespace of events of objects that are in none.
EVENTS = "default"
_TIMEOUT_S = 15.0
_MAX_KUBECONFIG = 4 << 20  # bytes
#: Seconds after which a watch is begun anew, at the least, and twice that at most: not all nodes at the same moment.
_WATCH_S = 300

Object = dict[str, Any]


class ApiError(GpurunError):
    """The API server refused, or could not be asked: *status* is its HTTP status, 0 when there was no answer."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.status = status


class Api:
    """One API server.  Methods raise :class:`ApiError`; they may be called from any thread."""

    def __init__(self, api_client: Any, where: str) -> None:
        self.where = where
        self._objects = client.CustomObjectsApi(api_client)
        self._core = client.CoreV1Api(api_client)
        self._apis = client.ApisApi(api_client)
        self._version = client.VersionApi(api_client)
        self._client = api_client

    def minor_version(self) -> int:
        """The server's minor version, such as 36."""
        code = _called("ask for the version", self._version.get_code)
        digits = "".join([c for c in str(code.minor) if c.isdigit()])
        return int(digits or 0)

    def resource_version_of_group(self) -> str:
        """The version of resource.k8s.io to speak.  Raises :class:`ApiError` where the server has none that is known."""
        groups = _called("ask for the API groups", self._apis.get_api_versions).groups
        served = [v.version for group in groups if group.name == RESOURCE_GROUP for v in group.versions]
        for version in RESOURCE_VERSIONS:
            if version in served:
                return version
        raise ApiError(
            self.where, 404, f"has no {RESOURCE_GROUP}/{RESOURCE_VERSIONS[0]} (it has: {', '.join(served) or 'none'}): "
            "dynamic resource allocation needs Kubernetes 1.33 or newer, with the feature on"
        )  # fmt: skip

    def node(self, name: str) -> Object:
        """The node *name*."""
        found: Object = self._plain(_called(f"get node {name}", self._core.read_node, name))
        return found

    def pod(self, namespace: str, name: str) -> Object:
        """The pod *name* of *namespace*."""
        found: Object = self._plain(_called(f"get pod {namespace}/{name}", self._core.read_namespaced_pod, name, namespace))
        return found

    def list_core(self, kind: str) -> list[Object]:
        """All objects of the *kind* ``node`` or ``pod``."""
        call = self._core.list_node if kind == "node" else self._core.list_pod_for_all_namespaces
        found: list[Object] = self._plain(_called(f"list {kind}s", call).items)
        return found

    def pods_of(self, namespace: str, node: str) -> list[Object]:
        """The pods of *namespace* on the node *node*."""
        call, selector = self._core.list_namespaced_pod, f"spec.nodeName={node}"
        answer = _called(f"list pods of {namespace}", call, namespace, field_selector=selector)
        found: list[Object] = self._plain(answer.items)
        return found

    def tell(self, node: str, reason: str, message: str) -> None:
        """Make an event (a warning) of the node *node*, which ``kubectl describe node`` shows."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        name = f"{node}.{time.time_ns():x}"
        body = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": EVENTS}, "type": "Warning",
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": reason, "message": message[:1024], "source": {"component": "gpurun", "host": node},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        _called(f"make an event of node {node}", self._core.create_namespaced_event, EVENTS, body)

    def label_node(self, name: str, labels: dict[str, str | None]) -> None:
        """Set *labels* of the node *name*; None takes one away."""
        _called(f"label node {name}", self._core.patch_node, name, {"metadata": {"labels": labels}})

    def listed(self, what: str, field_selector: str) -> tuple[list[Object], str]:
        """All of *what*, as :meth:`changes` takes it, and when they were so.  Returns (objects, resource version)."""
        if what not in ("nodes", "pods"):
            group, version, plural = what.split("/")
            return self.list(group, version, plural, field_selector)
        call = self._core.list_node if what == "nodes" else self._core.list_pod_for_all_namespaces
        answer = self._plain(_called(f"list {what}", call, field_selector=field_selector))
        return list(answer.get("items") or ()), str(answer.get("metadata", {}).get("resourceVersion", ""))

    def list(self, group: str, version: str, plural: str, field_selector: str = "") -> tuple[list[Object], str]:
        """All objects, and the resource version at which they were so.  Returns (objects, resource version)."""
        more = {"field_selector": field_selector} if field_selector else {}
        answer = _called(f"list {plural}", self._objects.list_cluster_custom_object, group, version, plural, **more)
        return list(answer.get("items") or ()), str(answer.get("metadata", {}).get("resourceVersion", ""))

    def get_namespaced(self, group: str, version: str, plural: str, namespace: str, name: str) -> Object:
        """One object of a namespace."""
        what = f"get {plural} {namespace}/{name}"
        call = self._objects.get_namespaced_custom_object
        found: Object = _called(what, call, group, version, namespace, plural, name)
        return found

    def create(self, group: str, version: str, plural: str, body: Object, dry_run: bool = False) -> Object:
        """Make an object of the cluster, or of the namespace that *body* names.

        With *dry_run* the server only says what it would make.
        """
        what, more, namespace = f"create {plural} {_name(body)}", {"dry_run": "All"} if dry_run else {}, _namespace(body)
        made: Object
        if namespace:
            call = self._objects.create_namespaced_custom_object
            made = _called(what, call, group, version, namespace, plural, body, **more)
        else:
            made = _called(what, self._objects.create_cluster_custom_object, group, version, plural, body, **more)
        return made

    def replace(self, group: str, version: str, plural: str, body: Object) -> Object:
        """Write an object of the cluster, or of the namespace that *body* names.

        Status 409 when *body* has an older resourceVersion than the server.
        """
        what, namespace = f"replace {plural} {_name(body)}", _namespace(body)
        made: Object
        if namespace:
            call = self._objects.replace_namespaced_custom_object
            made = _called(what, call, group, version, namespace, plural, _name(body), body)
        else:
            made = _called(what, self._objects.replace_cluster_custom_object, group, version, plural, _name(body), body)
        return made

    def delete(self, group: str, version: str, plural: str, name: str) -> None:
        """Delete an object of the cluster; one that is not there is no error."""
        try:
            _called(f"delete {plural} {name}", self._objects.delete_cluster_custom_object, group, version, plural, name)
        except ApiError as e:
            if e.status != 404:
                raise

    def changes(
        self, what: str, version: str, stop: threading.Event, field_selector: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """(``ADDED``, ``MODIFIED`` or ``DELETED``, object) since *version*, until the server ends it or *stop* is set.

        *what* is ``nodes``, ``pods`` or ``group/version/plural``.  ``BOOKMARK`` comes with an object that has only a
        resourceVersion: up to there nothing else has changed.  Raises :class:`ApiError`, with status 410 when *version*
        is too old: then list again.
        """
        stream = watch.Watch()
        call: Callable[..., Any]
        arguments: tuple[str, ...] = ()
        if what in ("nodes", "pods"):
            call = self._core.list_node if what == "nodes" else self._core.list_pod_for_all_namespaces
        else:
            call, arguments = self._objects.list_cluster_custom_object, tuple(what.split("/"))
        ends_s = int(_WATCH_S * random.uniform(1, 2))
        try:
            for event in stream.stream(
                call,
                *arguments,
                resource_version=version,
                field_selector=field_selector,
                allow_watch_bookmarks=True,
                timeout_seconds=ends_s,
                _request_timeout=ends_s + 10,
            ):
                if stop.is_set():
                    return
                yield str(event["type"]), event["raw_object"]
        except ApiException as e:
            raise ApiError(f"watch {what}", int(e.status or 0), _reason(e)) from None
        except Exception as e:  # what urllib3 raises differs from version to version; all of it is a broken connection
            raise ApiError(f"watch {what}", 0, f"{type(e).__name__}: {e}") from None
        finally:
            with contextlib.suppress(Exception):
                stream.stop()

    def _plain(self, model: Any) -> Any:
        return self._client.sanitize_for_serialization(model)


def connect(kubeconfig: str = "") -> Api:
    """The API server of *kubeconfig* (default: $KUBECONFIG), or the one of the cluster that this pod is in.

    Raises :class:`GpurunError`.
    """
    made = client.Configuration()
    given = kubeconfig or os.environ.get("KUBECONFIG", "")
    _check_files(given)
    try:
        if given:
            config.load_kube_config(given, client_configuration=made)
        else:
            config.load_incluster_config(client_configuration=made)
    except Exception as e:  # ConfigException, and whatever a broken file makes the library raise
        where = f"kubeconfig {given}" if given else "there is no --kubeconfig, and this is not a pod with a service account"
        raise GpurunError(f"{where}: {' '.join(str(e).split()) or type(e).__name__}") from None
    made.retries = 0  # whoever calls tries again by itself, and says so
    return Api(client.ApiClient(made), str(made.host))


def _check_files(given: str) -> None:
    """Raise :class:`GpurunError` for a file of *given* (names with colons between them) that would be read without an end.

    That is a FIFO that nobody may ever write, a device, or a file of any size; a shell's ``<(command)`` is a pipe with a
    writer.  What is not there is the library's to tell.
    """
    for path in given.split(os.pathsep):
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(found.st_mode) and "/pipe:[" not in os.path.realpath(path):
            raise GpurunError(f"kubeconfig {path}: is not a regular file")
        if found.st_size > _MAX_KUBECONFIG:
            raise GpurunError(f"kubeconfig {path}: is larger than {_MAX_KUBECONFIG >> 20} MiB")


def _called(what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, _request_timeout=_TIMEOUT_S, **options)
    except ApiException as e:
        raise ApiError(what, int(e.status or 0), _reason(e)) from None
    except Exception as e:  # see :meth:`Api.changes`
        raise ApiError(what, 0, f"{type(e).__name__}: {' '.join(str(e).split())}") from None


def _reason(error: Any) -> str:
    """What the server says, in one line."""
    import json

    try:
        document = json.loads(error.body or "{}")
    except (TypeError, ValueError):
        document = {}
    text = document.get("message") if isinstance(document, dict) else None
    return " ".join(str(text or error.reason or "refused").split()) + f" ({error.status})"


def _name(body: Object) -> str:
    return str(body["metadata"]["name"])


def _namespace(body: Object) -> str:
    return str(body["metadata"].get("namespace") or "")
