"""checkpoint, restore: a container saved to files, and made from them again."""

from __future__ import annotations

from gpurun import log
from gpurun.commands.lifecycle import create_options
from gpurun.paths import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.checkpoint.criu_options import CriuOptions
    from gpurun.invocation import Invocation


def criu_options(invocation: Invocation) -> CriuOptions:
    """The options that both commands have."""
    from gpurun.engine.checkpoint.criu_options import CriuOptions

    work = invocation.option("work-path")
    return CriuOptions(
        image_path=absolute_path(invocation.option("image-path") or "checkpoint"),
        work_path=absolute_path(work) if work else "",
        tcp_established=invocation.flag("tcp-established"),
        ext_unix_sk=invocation.flag("ext-unix-sk"),
        shell_job=invocation.flag("shell-job"),
        file_locks=invocation.flag("file-locks"),
        lazy_pages=invocation.flag("lazy-pages"),
        auto_dedup=invocation.flag("auto-dedup"),
        manage_cgroups=invocation.option("manage-cgroups-mode"),
        network_lock=invocation.option("network-lock"),
        empty_ns=invocation.texts("empty-ns"),
    )


def checkpoint(invocation: Invocation) -> int:
    """``checkpoint ID``: save the container; without --leave-running it is gone then."""
    from gpurun.engine.checkpoint.checkpoint import CheckpointOptions
    from gpurun.engine.checkpoint.checkpoint import checkpoint as save

    options = CheckpointOptions(
        id=invocation.args[0],
        root=invocation.globals.root,
        criu=criu_options(invocation),
        parent_path=invocation.option("parent-path"),
        leave_running=invocation.flag("leave-running"),
        tcp_skip_in_flight=invocation.flag("tcp-skip-in-flight"),
        link_remap=invocation.flag("link-remap"),
        status_fd=invocation.number("status-fd", -1),
        page_server=invocation.option("page-server"),
        pre_dump=invocation.flag("pre-dump"),
    )
    log.warnings(save(options))
    return 0


def restore(invocation: Invocation) -> int:
    """``restore ID``: make the container from its image; in the foreground wait, delete, and return its exit code."""
    from gpurun.engine.caller.delete import delete
    from gpurun.engine.caller.lifecycle import wait_foreground
    from gpurun.engine.checkpoint.criu_options import RestoreOptions
    from gpurun.engine.checkpoint.restore import restore as make
    from gpurun.engine.signals import block_signals

    maps = invocation.texts("gpu-map") or invocation.globals.gpu_map
    options = RestoreOptions(
        create=create_options(invocation),
        criu=criu_options(invocation),
        tcp_close=invocation.flag("tcp-close"),
        gpu_map=tuple([pair for text in maps for pair in text.split(",")]),
        lsm_profile=invocation.option("lsm-profile"),
        lsm_mount_context=invocation.option("lsm-mount-context"),
    )
    made = make(options)
    log.warnings(made.plan.warnings)
    if options.create.detached:
        return 0
    root, container_id = options.create.root, options.create.id
    block_signals()  # from now on they are the container's
    try:
        return wait_foreground(made.state.pid, made.pidfd, made.master)
    finally:
        log.warnings(delete(root, container_id, force=True))
