"""A CDI document with every field that the specification has."""

from __future__ import annotations

from typing import Any

FULL: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/class.sub",
    "annotations": {"vendor.com/note": "x"},
    "devices": [
        {
            "name": "dev:0",
            "annotations": {"a": "b"},
            "containerEdits": {
                "env": ["A=b", "C=d=e"],
                "deviceNodes": [
                    {
                        "path": "/dev/x",
                        "hostPath": "/dev/y",
                        "type": "c",
                        "major": 1,
                        "minor": 3,
                        "fileMode": 438,
                        "permissions": "rw",
                        "uid": 1,
                        "gid": 2,
                    }
                ],
                "netDevices": [{"hostInterfaceName": "eth9", "name": "net0"}],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/bin/hook",
                        "args": ["hook", "-x"],
                        "env": ["A=b"],
                        "timeout": 3,
                    }
                ],
                "mounts": [
                    {"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"], "type": "bind"},
                ],
                "intelRdt": {
                    "closID": "c",
                    "l3CacheSchema": "L3:0=f",
                    "memBwSchema": "MB:0=50",
                    "schemata": ["L3:0=f"],
                    "enableMonitoring": True,
                },
                "additionalGids": [44],
            },
        }
    ],
    "containerEdits": {"env": ["X=y"]},
}
