"""The options of gpu, cdi and kubernetes: one that is for another command of the group is refused."""

from __future__ import annotations

import pytest

from gpurun.cli.parse import parse
from gpurun.cli.rows import command
from gpurun.cli.table import COMMANDS, GROUPS
from gpurun.commands.cdi import cdi
from gpurun.commands.gpu import gpu
from gpurun.commands.groups import check_options
from gpurun.commands.kubernetes import kubernetes
from gpurun.errors import UsageError

RUN = {"gpu": gpu, "cdi": cdi, "kubernetes": kubernetes}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("gpu doctor --processes", "gpu doctor: takes no option --processes, which is for gpu list"),
        ("gpu list --expire", "gpu list: takes no option --expire, which is for gpu leases"),
        ("gpu attach --force web 0", "gpu attach: takes no option --force, which is for gpu detach"),
        ("cdi list --to /srv", "cdi list: takes no option --to, which is for cdi transform"),
        ("cdi transform --json", "cdi transform: takes no option --json, which is for cdi list and validate"),
        (
            "gpu attach --format json web 0",
            "gpu attach: takes no option --format, which is for gpu list, leases, doctor and explain",
        ),
        (
            "kubernetes labels --engine crio",
            "kubernetes labels: takes no option --engine, which is for kubernetes install-node",
        ),
    ],
)
def test_an_option_of_another_command_is_refused(line: str, text: str) -> None:
    words = line.split()
    with pytest.raises(UsageError) as refused:
        RUN[words[0]](parse(words))
    assert str(refused.value) == text


def test_its_own_options_and_those_of_the_group_are_taken() -> None:
    check_options(parse(["gpu", "list", "--processes", "--json"]))
    check_options(parse(["kubernetes", "labels", "--oneshot", "--interval", "5"]))


def test_who_takes_an_option() -> None:
    forms = [(option.takers, option.help) for option in command("cdi").options if option.name == "format"]
    assert forms == [(("generate", "refresh"), "yaml or json"), (("list", "validate"), "table or json")]
    options = {option.name: option for option in command("kubernetes").options}
    assert options["node-name"].takers == GROUPS["kubernetes"] and options["node-name"].help.startswith("the name of this")
    install = {option.name: option for option in command("install").options}
    assert install["cdi"].takers == () and install["cdi"].help.startswith("docker, containerd: ")


def test_the_help_names_only_commands_of_the_group() -> None:
    # A misspelt name would make an option one of all commands.
    for group, below in GROUPS.items():
        for name, _, _, text in COMMANDS[group]["options"]:
            named = set(text.partition(":")[0].split(", "))
            assert named <= set(below) or not named & set(below), name
