"""The messages of the Container Runtime Interface (runtime.v1) that the tests use: values ↔ bytes; pure.

A message is a dict.  What is not sent has its type's zero value; names of enumerations stand for their numbers.
Reference: kubernetes/cri-api, pkg/apis/runtime/v1/api.proto, for the numbers of the fields.
"""

from __future__ import annotations

from typing import Any

from gpurun.formats import protobuf

ENUMS = {
    "NamespaceMode": ("POD", "CONTAINER", "NODE", "TARGET"),
    "MountPropagation": ("PRIVATE", "HOST_TO_CONTAINER", "BIDIRECTIONAL"),
    "ProfileType": ("RUNTIME_DEFAULT", "UNCONFINED", "LOCALHOST"),
    "PodSandboxState": ("READY", "NOTREADY"),
    "ContainerState": ("CREATED", "RUNNING", "EXITED", "UNKNOWN"),
}
#: Message → its fields: name, number, type; `[]` is repeated, `{}` a map from text to text.
_FIELDS = {
    "VersionRequest": "version 1 string",
    "VersionResponse": "runtime_name 2 string, runtime_version 3 string, runtime_api_version 4 string",
    "StatusRequest": "verbose 1 bool",
    "StatusResponse": "status 1 RuntimeStatus",
    "RuntimeStatus": "conditions 1 RuntimeCondition[]",
    "RuntimeCondition": "type 1 string, status 2 bool, reason 3 string, message 4 string",
    "RunPodSandboxRequest": "config 1 PodSandboxConfig, runtime_handler 2 string",
    "RunPodSandboxResponse": "pod_sandbox_id 1 string",
    "StopPodSandboxRequest": "pod_sandbox_id 1 string",
    "StopPodSandboxResponse": "",
    "RemovePodSandboxRequest": "pod_sandbox_id 1 string",
    "RemovePodSandboxResponse": "",
    "PodSandboxStatusRequest": "pod_sandbox_id 1 string, verbose 2 bool",
    "PodSandboxStatusResponse": "status 1 PodSandboxStatus, info 2 {}",
    "PodSandboxStatus": "id 1 string, metadata 2 PodSandboxMetadata, state 3 PodSandboxState,"
    " network 5 PodSandboxNetworkStatus,"
    " labels 7 {}, annotations 8 {}, runtime_handler 9 string",
    "PodSandboxNetworkStatus": "ip 1 string",
    "ListPodSandboxRequest": "filter 1 PodSandboxFilter",
    "ListPodSandboxResponse": "items 1 PodSandbox[]",
    "PodSandboxFilter": "id 1 string, label_selector 3 {}",
    "PodSandbox": "id 1 string, metadata 2 PodSandboxMetadata, state 3 PodSandboxState, labels 5 {},"
    " runtime_handler 7 string",
    "PodSandboxConfig": "metadata 1 PodSandboxMetadata, hostname 2 string, log_directory 3 string, dns_config 4 DNSConfig,"
    " labels 6 {}, annotations 7 {}, linux 8 LinuxPodSandboxConfig",
    "PodSandboxMetadata": "name 1 string, uid 2 string, namespace 3 string, attempt 4 int",
    "DNSConfig": "servers 1 string[], searches 2 string[], options 3 string[]",
    "LinuxPodSandboxConfig": "cgroup_parent 1 string, security_context 2 LinuxSandboxSecurityContext, sysctls 3 {}",
    "LinuxSandboxSecurityContext": "namespace_options 1 NamespaceOption, run_as_user 3 Int64Value, readonly_rootfs 4 bool,"
    " privileged 6 bool, seccomp 9 SecurityProfile",
    "NamespaceOption": "network 1 NamespaceMode, pid 2 NamespaceMode, ipc 3 NamespaceMode, target_id 4 string,"
    " userns_options 5 UserNamespace",
    "UserNamespace": "mode 1 NamespaceMode, uids 2 IDMapping[], gids 3 IDMapping[]",
    "IDMapping": "host_id 1 int, container_id 2 int, length 3 int",
    "SecurityProfile": "profile_type 1 ProfileType, localhost_ref 2 string",
    "Int64Value": "value 1 int",
    "UInt64Value": "value 1 int",
    "CreateContainerRequest": "pod_sandbox_id 1 string, config 2 ContainerConfig, sandbox_config 3 PodSandboxConfig",
    "CreateContainerResponse": "container_id 1 string",
    "ContainerConfig": "metadata 1 ContainerMetadata, image 2 ImageSpec, command 3 string[], args 4 string[],"
    " working_dir 5 string, envs 6 KeyValue[], mounts 7 Mount[], devices 8 Device[], labels 9 {}, annotations 10 {},"
    " log_path 11 string, stdin 12 bool, stdin_once 13 bool, tty 14 bool, linux 15 LinuxContainerConfig,"
    " CDI_devices 17 CDIDevice[]",
    "ContainerMetadata": "name 1 string, attempt 2 int",
    "ImageSpec": "image 1 string",
    "KeyValue": "key 1 string, value 2 string",
    "Mount": "container_path 1 string, host_path 2 string, readonly 3 bool, propagation 5 MountPropagation,"
    " uidMappings 6 IDMapping[], gidMappings 7 IDMapping[]",
    "Device": "container_path 1 string, host_path 2 string, permissions 3 string",
    "CDIDevice": "name 1 string",
    "LinuxContainerConfig": "resources 1 LinuxContainerResources, security_context 2 LinuxContainerSecurityContext",
    "LinuxContainerResources": "cpu_period 1 int, cpu_quota 2 int, cpu_shares 3 int, memory_limit_in_bytes 4 int,"
    " oom_score_adj 5 int, cpuset_cpus 6 string, cpuset_mems 7 string, unified 9 {}, memory_swap_limit_in_bytes 10 int",
    "LinuxContainerSecurityContext": "capabilities 1 Capability, privileged 2 bool, namespace_options 3 NamespaceOption,"
    " run_as_user 5 Int64Value, run_as_username 6 string, readonly_rootfs 7 bool, supplemental_groups 8 int[],"
    " no_new_privs 11 bool, run_as_group 12 Int64Value, masked_paths 13 string[], readonly_paths 14 string[],"
    " seccomp 15 SecurityProfile",
    "Capability": "add_capabilities 1 string[], drop_capabilities 2 string[]",
    "StartContainerRequest": "container_id 1 string",
    "StartContainerResponse": "",
    "StopContainerRequest": "container_id 1 string, timeout 2 int",
    "StopContainerResponse": "",
    "RemoveContainerRequest": "container_id 1 string",
    "RemoveContainerResponse": "",
    "ListContainersRequest": "filter 1 ContainerFilter",
    "ListContainersResponse": "containers 1 Container[]",
    "ContainerFilter": "id 1 string, pod_sandbox_id 3 string",
    "Container": "id 1 string, pod_sandbox_id 2 string, metadata 3 ContainerMetadata, state 6 ContainerState, labels 8 {}",
    "ContainerStatusRequest": "container_id 1 string, verbose 2 bool",
    "ContainerStatusResponse": "status 1 ContainerStatus, info 2 {}",
    "ContainerStatus": "id 1 string, metadata 2 ContainerMetadata, state 3 ContainerState, created_at 4 int,"
    " started_at 5 int,"
    " finished_at 6 int, exit_code 7 int, image 8 ImageSpec, reason 10 string, message 11 string, labels 12 {},"
    " annotations 13 {}, mounts 14 Mount[], log_path 15 string, resources 16 ContainerResources",
    "ContainerResources": "linux 1 LinuxContainerResources",
    "UpdateContainerResourcesRequest": "container_id 1 string, linux 2 LinuxContainerResources",
    "UpdateContainerResourcesResponse": "",
    "ReopenContainerLogRequest": "container_id 1 string",
    "ReopenContainerLogResponse": "",
    "ExecSyncRequest": "container_id 1 string, cmd 2 string[], timeout 3 int",
    "ExecSyncResponse": "stdout 1 string, stderr 2 string, exit_code 3 int",
    "ExecRequest": "container_id 1 string, cmd 2 string[], tty 3 bool, stdin 4 bool, stdout 5 bool, stderr 6 bool",
    "ExecResponse": "url 1 string",
    "AttachRequest": "container_id 1 string, stdin 2 bool, tty 3 bool, stdout 4 bool, stderr 5 bool",
    "AttachResponse": "url 1 string",
    "ContainerStatsRequest": "container_id 1 string",
    "ContainerStatsResponse": "stats 1 ContainerStats",
    "ContainerStats": "attributes 1 ContainerAttributes, cpu 2 CpuUsage, memory 3 MemoryUsage,"
    " writable_layer 4 FilesystemUsage",
    "ContainerAttributes": "id 1 string, metadata 2 ContainerMetadata, labels 3 {}",
    "CpuUsage": "timestamp 1 int, usage_core_nano_seconds 2 UInt64Value, usage_nano_cores 3 UInt64Value",
    "MemoryUsage": "timestamp 1 int, working_set_bytes 2 UInt64Value, available_bytes 3 UInt64Value,"
    " usage_bytes 4 UInt64Value,"
    " rss_bytes 5 UInt64Value, page_faults 6 UInt64Value, major_page_faults 7 UInt64Value",
    "FilesystemUsage": "timestamp 1 int, used_bytes 3 UInt64Value, inodes_used 4 UInt64Value",
    "PodSandboxStatsRequest": "pod_sandbox_id 1 string",
    "PodSandboxStatsResponse": "stats 1 PodSandboxStats",
    "PodSandboxStats": "attributes 1 PodSandboxAttributes, linux 2 LinuxPodSandboxStats",
    "PodSandboxAttributes": "id 1 string, metadata 2 PodSandboxMetadata",
    "LinuxPodSandboxStats": "cpu 1 CpuUsage, memory 2 MemoryUsage, process 4 ProcessUsage, containers 5 ContainerStats[]",
    "ProcessUsage": "timestamp 1 int, process_count 2 UInt64Value",
}
FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    message: {name: (int(number), kind) for name, number, kind in (field.split() for field in text.split(",") if field)}
    for message, text in _FIELDS.items()
}
METHODS = tuple(name.removesuffix("Request") for name in FIELDS if name.endswith("Request"))


def encode(message: str, value: dict[str, Any]) -> bytes:
    """The bytes of a message; raises :class:`KeyError` for a field that it does not have."""
    known = FIELDS[message]
    if unknown := value.keys() - known.keys():
        raise KeyError(f"{message} has no {', '.join(sorted(unknown))}")
    return protobuf.message((known[name][0], item) for name in value for item in _items(known[name][1], value[name]))


def _items(kind: str, value: Any) -> list[int | str | bytes]:
    if kind == "{}":
        return [protobuf.message([(1, key), (2, text)]) for key, text in value.items()]
    if kind.endswith("[]"):
        return [item for one in value for item in _items(kind[:-2], one)]
    if kind in ENUMS:
        return [ENUMS[kind].index(value)]
    return [encode(kind, value) if kind in FIELDS else value]


def decode(message: str, data: bytes) -> dict[str, Any]:
    """The message, whole: every field that :data:`FIELDS` has of it."""
    found = protobuf.fields(data)
    return {name: _value(kind, found.get(number, [])) for name, (number, kind) in FIELDS[message].items()}


def _value(kind: str, sent: list[int | bytes]) -> Any:
    if kind == "{}":
        entries = [protobuf.fields(entry) for entry in sent if isinstance(entry, bytes)]
        return {protobuf.text(entry, 1): protobuf.text(entry, 2) for entry in entries}
    if kind.endswith("[]"):
        return [_value(kind[:-2], [one]) for one in sent]
    as_fields = {1: sent} if sent else {}
    if kind in ENUMS:
        number = protobuf.number(as_fields, 1)
        return ENUMS[kind][number] if number < len(ENUMS[kind]) else str(number)
    if kind in FIELDS:
        return decode(kind, protobuf.inner(as_fields, 1)) if sent else {}
    return protobuf.text(as_fields, 1) if kind == "string" else protobuf.number(as_fields, 1)
