"""The tests' own API server: as much of Kubernetes' as a node's programs can notice, over HTTP.

Objects have a uid and a resourceVersion, which only grows; a write with an old one is refused (409); a watch tells
everything since a resourceVersion, in order, and says 410 when that is forgotten; a list comes in pages where one is asked
for.  ResourceSlices are held to the published validation (:mod:`tests.kubernetes.rules`).  What it does not know it refuses
with the status that the real one has.  With *token* set, it asks for that.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kubernetes.rules import problems

Object = dict[str, Any]
Key = tuple[str, str, str]  # (plural, namespace, name)

#: Plural → (is in namespaces, is of the core group, fields that selectors may name).
KINDS = {
    "nodes": (False, True, ("metadata.name",)),
    "pods": (True, True, ("metadata.name", "metadata.namespace", "spec.nodeName")),
    "resourceslices": (False, False, ("metadata.name", "spec.nodeName", "spec.driver")),
    "resourceclaims": (True, False, ("metadata.name", "metadata.namespace")),
    "deviceclasses": (False, False, ("metadata.name",)),
    "events": (True, True, ()),
    "daemonsets": (True, False, ("metadata.name", "metadata.namespace")),
    "nodefeatures": (True, False, ("metadata.name", "metadata.namespace")),
}
#: Group of the plurals that are not of resource.k8s.io → its version.
GROUPS = {"apps": "v1", "nfd.k8s-sigs.io": "v1alpha1"}
_CONTENT = {"POST": ("application/json",), "PUT": ("application/json",), "PATCH": (
    "application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)}  # fmt: skip


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class ApiServer:
    """Started with the object, on a port of its own; *versions* are of resource.k8s.io, *minor* is Kubernetes'."""

    def __init__(self, versions: tuple[str, ...] = ("v1",), minor: int = 36) -> None:
        self.versions, self.minor = versions, minor
        self.changed = threading.Condition()
        self.objects: dict[Key, Object] = {}
        self.version = 100
        self._history: list[tuple[int, str, Key, Object]] = []
        self._forgotten = 100
        self.used: set[tuple[str, str]] = set()  # (verb, resource): what a role must allow
        self.asked: list[str] = []  # each request as METHOD PATH?QUERY
        self.admit: Callable[[str, Object], Object | None] = lambda plural, body: None
        self.down = False
        self.watching = 0  # watches that are being answered
        self.token = ""
        server = self
        self._stopping = False

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.handle(self, "GET")

            def do_POST(self) -> None:
                server.handle(self, "POST")

            def do_PUT(self) -> None:
                server.handle(self, "PUT")

            def do_PATCH(self) -> None:
                server.handle(self, "PATCH")

            def do_DELETE(self) -> None:
                server.handle(self, "DELETE")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write how to reach it."""
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {"token": "a-token"}}],
        }  # fmt: skip
        path.write_text(json.dumps(document))
        return path

    def stop(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    # What tests do to it.

    def put(self, plural: str, body: Object) -> Object:
        """Write an object whatever is there: who does it is somebody else."""
        metadata = body.setdefault("metadata", {})
        key = plural, str(metadata.get("namespace", "")), str(metadata["name"])
        with self.changed:
            old = self.objects.get(key)
            return self._store(key, body, "MODIFIED" if old else "ADDED", old)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        with self.changed:
            self._delete((plural, namespace, name))

    def all(self, plural: str) -> list[Object]:
        with self.changed:
            return [copy.deepcopy(value) for key, value in sorted(self.objects.items()) if key[0] == plural]

    def forget(self) -> None:
        """Compact the history: no watch can begin before now."""
        with self.changed:
            self._history.clear()
            self._forgotten = self.version

    def wait(self, what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        with self.changed:
            deadline = time.monotonic() + timeout_s
            while not (answer := what()):
                left = deadline - time.monotonic()
                assert left > 0, f"not within {timeout_s:g} s: {json.dumps(list(self.objects.values()), indent=1)[:4000]}"
                self.changed.wait(min(left, 0.2))
            return answer

    # The server.

    def _store(self, key: Key, body: Object, event: str, old: Object | None) -> Object:
        self.version += 1
        made = copy.deepcopy(body)
        metadata = made["metadata"]
        metadata["resourceVersion"] = str(self.version)
        metadata["uid"] = old["metadata"]["uid"] if old else metadata.get("uid") or str(uuid.uuid4())
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[key] = made
        self._history.append((self.version, event, key, copy.deepcopy(made)))
        self.changed.notify_all()
        return made

    def _delete(self, key: Key) -> Object:
        if key not in self.objects:
            raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        gone = self.objects.pop(key)
        self.version += 1
        gone = copy.deepcopy(gone)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, "DELETED", key, gone))
        self.changed.notify_all()
        return gone

    def handle(self, request: BaseHTTPRequestHandler, method: str) -> None:
        split = urlsplit(request.path)
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        length = int(request.headers.get("Content-Length") or 0)
        data = request.rfile.read(length)
        self.asked.append(f"{method} {request.path}")
        try:
            if self.down:
                raise Refused(503, "ServiceUnavailable", "the server is down")
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            content = (request.headers.get("Content-Type") or "").partition(";")[0].strip()
            if content and method in _CONTENT and content not in _CONTENT[method]:  # none is JSON
                known = ", ".join(_CONTENT[method])
                raise Refused(
                    415, "UnsupportedMediaType", f"the body of the request was in an unknown format, {content}: {known}"
                )
            body = json.loads(data) if data else {}
            if content == "application/json-patch+json" and not isinstance(body, list):
                raise Refused(400, "BadRequest", "cannot unmarshal object into a JSON patch")
            path = [part for part in split.path.split("/") if part]
            if path and path[-1] in ("version", "apis") and len(path) == 1:
                self._send(request, 200, self._about(path[0]))
                return
            plural, namespace, name = self._resource(path)
            if method == "GET" and not name and query.get("watch") in ("true", "True", "1"):
                self._watch(request, plural, namespace, query)
                return
            self._send(request, 200 if method != "POST" else 201, self._do(method, plural, namespace, name, query, body))
        except Refused as e:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": str(e),
                "reason": e.reason,
                "code": e.status,
            }
            self._send(request, e.status, status)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has gone

    def _about(self, what: str) -> Object:
        if what == "version":
            return {
                "major": "1", "minor": str(self.minor), "gitVersion": f"v1.{self.minor}.0", "gitCommit": "x",
                "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1", "compiler": "gc",
                "platform": "linux/amd64",
            }  # fmt: skip
        versions = [{"groupVersion": f"resource.k8s.io/{v}", "version": v} for v in self.versions]
        group = {"name": "resource.k8s.io", "versions": versions, "preferredVersion": versions[0] if versions else {}}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group] if versions else []}

    def _versions_of(self, group: str) -> tuple[str, ...]:
        return self.versions if group == "resource.k8s.io" else (GROUPS[group],) if group in GROUPS else ()

    def _resource(self, path: list[str]) -> Key:
        if path[:2] == ["api", "v1"]:
            rest = path[2:]
        elif path[:1] == ["apis"] and len(path) > 2 and path[2] in self._versions_of(path[1]):
            rest = path[3:]
        else:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if not rest or rest[0] not in KINDS or KINDS[rest[0]][1] != (path[0] == "api") or len(rest) > 2:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return rest[0], namespace, rest[1] if len(rest) > 1 else ""

    def _do(self, method: str, plural: str, namespace: str, name: str, query: dict[str, str], body: Object) -> Object:
        key = plural, namespace, name
        with self.changed:
            verb = {
                "GET": "get" if name else "list",
                "POST": "create",
                "PUT": "update",
                "PATCH": "patch",
                "DELETE": "delete",
            }
            self.used.add((verb[method], plural))
            old = self.objects.get(key)
            if method == "GET" and not name:
                found = [
                    value
                    for key, value in sorted(self.objects.items())
                    if self._selected(key, value, plural, namespace, query)
                ]
                metadata = {"resourceVersion": str(self.version)}
                limit, begin = int(query.get("limit") or 0), int(query.get("continue") or 0)
                if limit and begin + limit < len(found):
                    metadata |= {"continue": str(begin + limit), "remainingItemCount": str(len(found) - begin - limit)}
                found = found[begin : begin + limit] if limit else found
                return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": copy.deepcopy(found)}
            if method == "POST":
                key = plural, namespace, str(body["metadata"]["name"])
                if key in self.objects:
                    raise Refused(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
                if body["metadata"].get("resourceVersion"):
                    raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
                self._check(path_version(plural, self.versions), plural, "", body, None)
                if query.get("dryRun") == "All":
                    return copy.deepcopy(self.admit(plural, body) or body)
                return self._store(key, self.admit(plural, body) or body, "ADDED", None)
            if old is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            if method == "GET":
                return copy.deepcopy(old)
            if method == "DELETE":
                return self._delete(key)
            if method == "PATCH":
                return self._store(key, merge(old, body), "MODIFIED", old)
            given = body["metadata"].get("resourceVersion")
            if given is not None and given != old["metadata"]["resourceVersion"]:
                raise Refused(
                    409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
                )
            self._check(path_version(plural, self.versions), plural, name, body, old)
            body = self.admit(plural, body) or body
            if plural == "resourceslices" and given is None:
                raise Refused(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
            return self._store(key, body, "MODIFIED", old)

    def _check(self, versions: tuple[str, ...], plural: str, name: str, body: Object, old: Object | None) -> None:
        """What the real one refuses before anything is looked up or stored."""
        if body.get("apiVersion") not in versions or not body.get("kind"):
            raise Refused(
                400, "BadRequest", f"the API version in the data ({body.get('apiVersion')}) does not match {versions}"
            )
        if name and body["metadata"]["name"] != name:
            raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
        found = problems(body, old, self.minor) if plural == "resourceslices" else []
        if found:
            raise Refused(422, "Invalid", f'{body["kind"]} "{body["metadata"]["name"]}" is invalid: {"; ".join(found)}')

    def _selected(self, key: Key, value: Object, plural: str, namespace: str, query: dict[str, str]) -> bool:
        if key[0] != plural or (namespace and key[1] != namespace):
            return False
        for term in (query.get("fieldSelector") or "").split(","):
            field, _, wanted = term.partition("=")
            if not field:
                continue
            if field not in KINDS[plural][2]:
                raise Refused(400, "BadRequest", f'"{field}" is not a known field selector')
            found: Any = value
            for part in field.split("."):
                found = found.get(part, "") if isinstance(found, dict) else ""
            if found != wanted:
                return False
        return True

    def _watch(self, request: BaseHTTPRequestHandler, plural: str, namespace: str, query: dict[str, str]) -> None:
        self.used.add(("watch", plural))
        since = int(query.get("resourceVersion") or 0)
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 60)
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()

        def send(event: Object) -> None:
            data = json.dumps(event).encode() + b"\n"
            request.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            request.wfile.flush()

        if since < self._forgotten:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {since}"}
            send({"type": "ERROR", "object": status})
            request.wfile.write(b"0\r\n\r\n")
            return
        with self.changed:
            self.watching += 1
        try:
            self._tell(plural, namespace, query, since, deadline, send)
        finally:
            with self.changed:
                self.watching -= 1
                self.changed.notify_all()
        request.wfile.write(b"0\r\n\r\n")

    def _tell(
        self, plural: str, namespace: str, query: dict[str, str], since: int, deadline: float, send: Callable[[Object], None]
    ) -> None:
        while not self._stopping and not self.down:
            with self.changed:
                news = [(v, event, key, value) for v, event, key, value in self._history if v > since]
                left = deadline - time.monotonic()
                if not news and left > 0:
                    self.changed.wait(min(left, 0.5))
                    continue
            if not news:
                break
            for version, event, key, value in news:
                since = version
                if self._selected(key, value, plural, namespace, query):
                    send({"type": event, "object": value})

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, body: Object) -> None:
        data = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)


def path_version(plural: str, versions: tuple[str, ...]) -> tuple[str, ...]:
    """The values of ``apiVersion`` that an object of *plural* may have."""
    if plural == "nodefeatures":
        return ("nfd.k8s-sigs.io/v1alpha1",)
    return ("v1",) if KINDS[plural][1] else tuple(f"resource.k8s.io/{version}" for version in versions)


def merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), value)
    return made
