"""A client of the Container Runtime Interface, for the tests: crictl is in no Debian release.

    cri METHOD [FIELD=TEXT | FIELD:=JSON]... [--until FIELD=TEXT] [-q FIELD]... [-- COMMAND]

FIELD is a path into the request (``config.metadata.name``), or into the answer for ``-q``, whose values are written on one
line; without it the answer is written as JSON.  With ``--until`` the call is made again until a field of the answer is that.
ExecSync writes what the command has written and exits with its code.  Exec and Attach go on over a websocket, with standard
input and a terminal where the request has ``stdin`` and ``tty``.
The socket is ``CRI_ADDRESS``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests.clients.cri import grpc, messages

TIMEOUT = 240.0  # seconds; the emulated guest is slow
PATIENCE = float(os.environ.get("PATIENCE", "60"))
COMMAND = {"CreateContainer": ["config", "command"], "ExecSync": ["cmd"], "Exec": ["cmd"]}


def put(request: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a field; a message is set field by field."""
    for name in path[:-1]:
        request = request.setdefault(name, {})
    if isinstance(value, dict) and isinstance(request.get(path[-1]), dict):
        for name in value:
            put(request[path[-1]], [name], value[name])
    else:
        request[path[-1]] = value


def get(answer: Any, path: list[str]) -> Any:
    """What is there; empty where nothing is."""
    for name in path:
        if isinstance(answer, list):
            answer = answer[int(name)] if int(name) < len(answer) else ""
        else:
            answer = answer.get(name, "") if answer else ""
    return answer


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def ask(method: str, request: dict[str, Any], until: str) -> dict[str, Any]:
    """The answer to *request*; with *until* (``FIELD=TEXT``) the first one that says so, or none within :data:`PATIENCE`."""
    path, asked = f"/runtime.v1.RuntimeService/{method}", messages.encode(f"{method}Request", request)
    field, _, text = until.partition("=")
    end = time.monotonic() + PATIENCE
    while True:
        answer = messages.decode(f"{method}Response", grpc.call(os.environ["CRI_ADDRESS"], path, asked, TIMEOUT))
        if not until or shown(get(answer, field.split("."))) == text:
            return answer
        if time.monotonic() > end:
            sys.exit(f"cri: {method}: never {until}, but {shown(get(answer, field.split('.')))}")
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in messages.METHODS:
        sys.exit(f"{__doc__}\nMethods: {' '.join(messages.METHODS)}")
    method, request, wanted, until = arguments[0], dict[str, Any](), list[list[str]](), ""
    words = iter(arguments[1:])
    for word in words:
        if word == "--":
            put(request, COMMAND[method], list(words))
        elif word == "-q":
            wanted.append(next(words).split("."))
        elif word == "--until":
            until = next(words)
        else:
            field, _, value = word.partition("=")
            put(request, field.rstrip(":").split("."), json.loads(value) if field.endswith(":") else value)
    try:
        answer = ask(method, request, until)
    except (grpc.RpcError, OSError) as e:
        print(f"cri: {method}: {e}", file=sys.stderr)
        return 1
    if method == "ExecSync":
        sys.stdout.write(answer["stdout"])
        sys.stderr.write(answer["stderr"])
        return int(answer["exit_code"])
    if method in ("Exec", "Attach") and not wanted:
        from tests.clients.cri import stream  # takes as long to import as all else

        return stream.converse(answer["url"], bool(request.get("stdin")), TIMEOUT)
    print(" ".join(shown(get(answer, path)) for path in wanted) if wanted else json.dumps(answer, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
