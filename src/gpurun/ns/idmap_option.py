"""The maps of an id-mapped mount as crun and Podman have them among its options; pure (crun.1 "idmap mount options").

``idmap=uids=0-1-10#10-11-10;gids=0-100-10``: of each range the first id in the file system, the first id on the host, and
how many; with ``@`` before it the second is an id of the container.  Imported only for mounts with such an option.
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.ns.namespaces import map_lines
from gpurun.oci.config import IdMapping


def maps_of_option(text: str, where: str, uids: str, gids: str) -> tuple[str, str]:
    """The lines of the uid map and of the gid map that *text*, what follows ``idmap=``, stands for.

    *uids* and *gids* are the maps of the container's user namespace, empty without one.  Raises :class:`ConfigError`.
    Returns (uid map, gid map).
    """
    containers = {"uids": uids, "gids": gids}
    found: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, ranges = part.partition("=")
        if name not in containers or not equals:
            raise ConfigError(where, f'"{part}" in idmap={text}: uids=FIRST-HOST-COUNT or gids=FIRST-HOST-COUNT is needed')
        if name in found:
            raise ConfigError(where, f"{name} is given twice in idmap={text}")
        mappings: list[IdMapping] = []
        for one in ranges.split("#"):
            numbers = one.removeprefix("@").split("-")
            if len(numbers) != 3 or not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in numbers):
                raise ConfigError(where, f'"{one}" in idmap={text} is not a range of ids, FIRST-HOST-COUNT')
            mapping = IdMapping(*[int(word) for word in numbers])
            mappings += _of_the_container(mapping, containers[name], where, text) if one[:1] == "@" else [mapping]
        found[name] = map_lines(tuple(mappings), f"{where} (idmap={text})")
    for name in containers:
        if name not in found:
            raise ConfigError(where, f"idmap={text} has no {name}: an id-mapped mount needs both")
    return found["uids"], found["gids"]


def _of_the_container(mapping: IdMapping, lines: str, where: str, text: str) -> list[IdMapping]:
    """*mapping*, whose second number is an id of the container, cut where the map *lines* of its user namespace is."""
    if not lines:
        raise ConfigError(where, f"@ in idmap={text} is for containers with a user namespace")
    found = []
    first, wanted, count = mapping.container_id, mapping.host_id, mapping.size
    while count > 0:
        for line in lines.splitlines():
            inside, outside, size = [int(word) for word in line.split()]
            if inside <= wanted < inside + size:
                part = min(count, inside + size - wanted)
                found.append(IdMapping(first, outside + wanted - inside, part))
                first, wanted, count = first + part, wanted + part, count - part
                break
        else:
            raise ConfigError(where, f"idmap={text}: the container's user namespace has no id {wanted}")
    return found or [mapping]
