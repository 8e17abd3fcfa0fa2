"""What holds over the whole of src/: how files of an image are opened, and what bytes are believed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

from tests.source_tree import Tree

TREE = Tree()

#: Modules that have a rootfs, or a directory in one, in their hands.
IN_THE_IMAGE = (
    *(
        f"hook/{name}.py"
        for name in (
            "apply",
            "compat",
            "image_files",
            "loaders",
            "private_mounts",
            "rootfs_target",
            "running",
            "running_removal",
        )
    ),
    *(
        f"ns/{name}.py"
        for name in (
            "copyup",
            "devices",
            "directory_cache",
            "journal",
            "masks",
            "outside",
            "path",
            "pivot",
            "rootfs",
            "undo",
        )
    ),
    *(name for name in TREE if name.startswith("engine/inside/")),
    *(f"engine/checkpoint/{name}.py" for name in ("checkpoint_devices", "criu_options", "restore_devices")),
    "commands/gpu_use.py",
    "engine/terminal.py",
    "gpu/leases/container_nodes.py",
    "hook/closed_bundle.py",
    "images/config.py",
    "security/lsm.py",
)
#: Who else opens by a descriptor of a directory, and what it is of.
OF_NO_IMAGE = {
    "cgroup/manager.py": "the cgroup tree",
    "cgroup/stats.py": "the cgroup tree",
    "engine/caller/exec_cgroup.py": "the cgroup tree",
    "engine/caller/update.py": "the cgroup tree",
    "gpu/leases/files.py": "leases of other users, by O_PATH",
    "gpu/nvidia/host/libraries.py": "where the driver is installed",
    "gpu/nvidia/mps/programs.py": "where the driver is installed",
    "gpu/nvidia/platforms/tegra.py": "where the driver is installed",
    "library/host_checks.py": "a program of a config is looked for, by O_PATH",
}
#: Flags with which an open does nothing to a device, or makes a new file.
HARMLESS = {"O_PATH", "O_DIRECTORY", "O_EXCL"}
#: (file, function): the opens of these that are of no image's, with the reason.
OTHERS = {
    ("ns/path.py", "reopen"): "the one way: a file that has been looked at by its O_PATH descriptor",
    ("ns/path.py", "open_in_root"): "its callers' flags are looked at",
    ("engine/inside/enter_process.py", "write_proc"): "a file of a verified procfs",
    ("security/lsm.py", "_first"): "the host's /sys",
    ("security/lsm.py", "selinux_enabled"): "the host's /proc",
    ("security/lsm.py", "check_restored_context"): "the host's /sys and /proc",
    ("security/lsm.py", "leave_own_profile"): "the host's /proc, of a caller on the host",
    ("ns/pivot.py", "move_root"): "the host's /proc, before the root is the container's",
    ("security/lsm.py", "_write_attr"): "a file of a verified procfs",
    ("engine/terminal.py", "check_console"): "the caller's own terminal, on the host",
    ("hook/running.py", "change"): "namespaces of the init, in the host's /proc",
    ("hook/running.py", "_as_child"): "the host's /proc, before the container's namespaces are entered",
    ("engine/checkpoint/checkpoint_devices.py", "_points_in_use"): "the host's /proc",
    ("engine/checkpoint/criu_options.py", "has_cgroup_image"): "CRIU's images",
    ("engine/checkpoint/restore_devices.py", "_make_in"): "the state directory",
    ("engine/checkpoint/restore_devices.py", "renew_devices"): "the journal, in the state directory",
    ("gpu/leases/container_nodes.py", "command_of"): "the host's /proc",
    ("images/config.py", "read"): "the descriptor that open_file has given",
}
OPENERS = {"open", "openat2", "open_in_root", "read_file"}
#: What opens by the descriptor of a directory: who calls one of these may have an image in his hands.
BY_DESCRIPTOR = {"openat2", "open_in_root", "open_file", "reopen"}


def functions(tree: ast.AST, within: ast.AST | None = None) -> Iterator[tuple[ast.AST | None, ast.Call]]:
    """(the innermost function it is in, call) of every call."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield within, node
        yield from functions(node, node if isinstance(node, ast.FunctionDef) else within)


def called(call: ast.Call) -> str:
    return (
        call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    )


def names_in(node: ast.AST, assigned: Mapping[str, ast.AST]) -> set[str]:
    found = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            found |= {n.id} | (names_in(assigned[n.id], {}) if n.id in assigned else set())
    return found


def opens() -> Iterator[tuple[str, str, int, set[str]]]:
    """(file, function, line, names among the flags) of what is opened in the modules that have an image in their hands."""
    for file in IN_THE_IMAGE:
        for within, call in functions(TREE[file]):
            if called(call) not in OPENERS:
                continue
            assigned = {
                target.id: node.value
                for node in (ast.walk(within) if within else ())
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            alone = called(call) == "open_in_root" and len(call.args) == 2  # O_PATH is what it does without flags
            flags = {"O_PATH"} if alone else set().union(*(names_in(arg, assigned) for arg in call.args[1:]))
            yield file, getattr(within, "name", ""), call.lineno, flags


def test_every_open_in_an_image_is_of_what_has_been_looked_at() -> None:
    found = list(opens())
    assert len(found) > 40
    wrong = [
        f"{file}:{line} in {function}: use open_file of ns/path.py"
        for file, function, line, flags in found
        if not flags & HARMLESS and (file, function) not in OTHERS
    ]
    assert not wrong, "\n".join(wrong)
    used = {(file, function) for file, function, _, flags in found if not flags & HARMLESS}
    assert not OTHERS.keys() - used, "exceptions that nothing needs any more"


def test_who_has_an_image_in_his_hands_is_known() -> None:
    """A module that opens by the descriptor of a directory is looked at above, or it is said what the directory is."""
    using = {file for file, tree in TREE.items() if any(called(call) in BY_DESCRIPTOR for _, call in functions(tree))}
    assert using - {*IN_THE_IMAGE, *OF_NO_IMAGE} == set(), "say in IN_THE_IMAGE or OF_NO_IMAGE what these open"
    assert not OF_NO_IMAGE.keys() - using, "exceptions that nothing needs any more"


#: Who reads what was marshalled, and by whom that was written.
MARSHAL = {
    "engine/messages.py": "the processes inside, of what the parent has sent them",
    "launcher/boot.py": "the launcher, of its own file",
    "launcher/fresh_interpreter.py": "a starter, of the launcher's file",
    "builder/launcher.py": "the build, of what it has written",
    "builder/any_python.py": "the launcher, of its own file",
    "document_cache.py": "a cache that is ours alone, with a digest (cachefile.py)",
    "gpu/nvidia/discovery_cache.py": "a cache that is ours alone, with a digest (cachefile.py)",
    "gpu/readings.py": "the caller, of what its own helper process has sent",
    "gpu/surveys.py": "the caller, of what its own helper process has sent",
    "gpu/host/tasks.py": "only writes, to the caller of a helper process",
}
READERS = {"loads", "load", "eval", "exec", "Unpickler"}
FORBIDDEN = {"pickle", "shelve", "dill", "cPickle", "jsonpickle"}


def test_no_program_is_read_of_what_others_write() -> None:
    for file, tree in TREE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
                assert not names & FORBIDDEN, f"{file}:{node.lineno}"
                assert "marshal" not in names or file in MARSHAL, f"{file}:{node.lineno}"
            if isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.attr in READERS:
                    assert function.value.id != "marshal" or file in MARSHAL, f"{file}:{node.lineno}"
                elif isinstance(function, ast.Name) and function.id in ("eval", "exec", "compile"):
                    assert file in MARSHAL or file.startswith("builder/"), f"{file}:{node.lineno}"


@pytest.mark.parametrize("name", ["expect_go", "receive_files"])  # expect_go calls receive, which nothing else has to
def test_only_the_processes_inside_unmarshal_messages(name: str) -> None:
    users = {
        file
        for file, tree in TREE.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in (name, "receive") and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "messages"
    }
    assert users and all(file.startswith("engine/inside/") for file in users), users
