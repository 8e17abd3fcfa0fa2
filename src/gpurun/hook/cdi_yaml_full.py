"""All of YAML, by PyYAML: for CDI files that :mod:`gpurun.hook.cdi_yaml` does not read itself."""

from __future__ import annotations

import yaml

from gpurun.errors import ConfigError
from gpurun.hook.cdi_yaml import resolve_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STR_TAG = "tag:yaml.org,2002:str"
_MAX_VALUES = 100_000  # aliases can make a few lines stand for billions


def read_full(text: str, source: str) -> Any:
    """The one document in *text*, plain scalars resolved as in the subset.  Raises :class:`ConfigError` naming the line."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return None if node is None else _value(node, source, 0, [_MAX_VALUES])
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"{source}: line {mark.line + 1}" if mark else source
        raise ConfigError(where, f"is not valid YAML: {e.problem or e.context}") from None
    except yaml.YAMLError as e:
        raise ConfigError(source, f"is not valid YAML: {str(e).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(source, "is nested too deeply") from None


def _value(node: yaml.Node, source: str, depth: int, left: list[int]) -> Any:
    """The value of *node*; *left* counts down how many values the document may still have."""
    where = f"{source}: line {node.start_mark.line + 1}"
    left[0] -= 1
    if depth > 64 or left[0] < 0:
        raise ConfigError(where, "is nested too deeply" if depth > 64 else f"has more than {_MAX_VALUES} values")
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise ConfigError(where, f"has the tag {node.tag}, which means nothing here")
    if isinstance(node, yaml.ScalarNode):
        return resolve_plain(node.value) if node.style is None and node.tag == _STR_TAG else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, source, depth + 1, left) for n in node.value]
    made = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(where, "has a key that is not a word")
        if key_node.value in made:
            raise ConfigError(f"{source}: line {key_node.start_mark.line + 1}", f'has the key "{key_node.value}" twice')
        made[key_node.value] = _value(value_node, source, depth + 1, left)
    return made
