"""update's options: each that the help shows does something."""

from __future__ import annotations

from gpurun.cli.rows import command
from gpurun.commands import control

#: Those that ``update`` reads by themselves.
BY_THEMSELVES = {"resources", "gpus"}


def test_every_option_of_update_is_read() -> None:
    """One that stood in the table alone would be accepted and do nothing."""
    shown = {option.name for option in command("update").options if option.visible}
    handled = {row[0] for row in vars(control)["_UPDATE_OPTIONS"]} | {row[0] for row in vars(control)["_SCHEMATA"]}
    assert shown == handled | BY_THEMSELVES


def test_every_option_of_update_sets_what_is_read() -> None:
    """Object and member are those that the reader of update's documents knows: no two options set the same one."""
    from gpurun.engine.caller.update import read_update
    from gpurun.oci.resources import Resources

    rows = vars(control)["_UPDATE_OPTIONS"]
    seen = []
    for option, group, member, kind in rows:
        made = read_update({group: {member: "0-1" if kind == "text" else 1 if member == "idle" else 20}}, "")
        assert made != Resources() and made not in seen, option
        seen.append(made)
