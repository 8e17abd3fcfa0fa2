"""``python -m tests.screens``: the pictures in docs/screens, of what commands print on terminals of 80 and 120 columns.

A simulated driver stands in for one, and `stats` shows containers that there are not.
"""

from __future__ import annotations

import json
import tempfile
from html import escape
from pathlib import Path

from gpurun.commands.stats import Look, row, stats_table
from gpurun.engine.state import State
from gpurun.library.stats import Stats
from tests.cli.test_terminal import on_terminal
from tests.native.bundle import Bundle, base_config
from tests.simdriver import Options, SimulatedDriver, make

REPOSITORY = Path(__file__).resolve().parent.parent
SCREENS = REPOSITORY / "docs/screens"
WIDTHS = (80, 120)
#: Name of the picture → what is typed.
COMMANDS = {
    "doctor": ("gpu", "doctor"),
    "explain": ("explain", "/srv/bundle"),
    "gpu-list": ("gpu", "list"),
    "stats": ("stats", "--once"),
}
_LINES = 80  # a picture shows no more of a long answer
_ITEMS = 5  # and no more below one title of `explain`
_CHARACTER, _LINE, _MARGIN = 7.83, 17, 14  # pixels, of 13 pixels of a monospaced type


def svg(title: str, text: str, columns: int) -> str:
    """A picture of a terminal with *title* typed and *text* printed."""
    lines = text.expandtabs().rstrip("\n").split("\n")
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"(and {len(lines) - _LINES} lines more)"]
    width, height = round(columns * _CHARACTER) + 2 * _MARGIN, (len(lines) + 1) * _LINE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#1d1f21"/>',
        '<g font-family="DejaVu Sans Mono, Liberation Mono, Menlo, Consolas, monospace" font-size="13" fill="#d8dad8">',
    ]
    for number, line in enumerate([f"$ {title}", *lines]):
        colour = ' fill="#8abeb7"' if not number else ""
        y = _MARGIN + _LINE * number + 12
        if line.strip():
            parts.append(f'<text x="{_MARGIN}" y="{y}" xml:space="preserve"{colour}>{escape(line, quote=False)}</text>')
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def look(name: str, at: float, cpu: float, memory: int, more: tuple[int, int, int], waited: float) -> Look:
    """A look at a container; *more*: processes, bytes read and written."""
    pids, read, written = more
    some = {"psi": {"some": {"avg10": waited}}}
    figures = Stats(cpu, memory, 64 << 30, pids, None, read, written, 0, {"cpu": some, "memory": some, "blkio": some})
    return Look("/run/gpurun", State(name, "/b", "/b/rootfs", "/c", True, 7), at, figures, ("io", "memory", "pids"))


def stats(columns: int) -> str:
    """The table of `stats` for two containers that there are not: this host's would show nothing of a GPU."""
    rows = []
    for name, load, used, cpu in (("train-1", 97, 61 << 30, 3.4), ("web", 12, 3 << 30, 0.3)):
        gpu = {"memory": {"total": 80 << 30, "container": used}, "utilization": {"gpu": load}}
        more = (int(cpu * 10), int(cpu * 9e9), int(cpu * 7e8))
        before = look(name, 0.0, 0.0, 0, more, 0.0)
        rows.append(row(before, look(name, 1.0, cpu, int(cpu * 7e9), more, round(cpu * 1.7, 1)), (name, "Docker"), [gpu]))
    return stats_table(rows, columns)


def shown(name: str, columns: int, host: SimulatedDriver, bundle: Path) -> str:
    """What the terminal shows, with the names of temporary directories as a user's would be."""
    if name == "stats":
        return stats(columns)
    words = [str(bundle) if word == "/srv/bundle" else word for word in COMMANDS[name]]
    text = on_terminal(*words, columns=columns, env=host.env)
    text = text.replace(str(bundle), "/srv/bundle").replace(str(host.path), "")
    return shortened(text) if name == "explain" else text


def shortened(text: str) -> str:
    """*text* with the first items of each long section alone, so that a picture reaches the last ones."""
    lines: list[str] = []
    items = left = 0  # of the section so far; those that are left out
    for line in [*text.splitlines(), ""]:
        is_item = line.startswith("  ") and not line.startswith("    ")
        items = items + is_item if line.startswith("  ") else 0
        if items > _ITEMS:
            left += is_item
            continue
        if left:
            lines.append(f"  (and {left} more)")
            left = 0
        lines.append(line)
    return "\n".join(lines) + "\n"


def pictures(place: Path) -> dict[str, str]:
    """File name → picture; *place* is an empty directory."""
    host = make(place / "host", Options(gpus=2, nodes=False))
    bundle = Bundle(place / "bundle", base_config())
    (bundle.rootfs / "usr/bin").mkdir(parents=True)
    (bundle.rootfs / "usr/bin/train").touch(0o755)
    bundle.process["args"] = ["train", "--epochs", "3"]
    bundle.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    bundle.linux["cgroupsPath"] = "/train-1"
    (bundle.directory / "config.json").write_text(json.dumps(bundle.config))
    made = {}
    for name, words in COMMANDS.items():
        for columns in WIDTHS:
            made[f"{name}-{columns}.svg"] = svg(
                f"gpurun {' '.join(words)}", shown(name, columns, host, bundle.directory), columns
            )
    return made


def main() -> None:
    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="g", dir="/var/tmp") as place:
        for name, text in pictures(Path(place)).items():
            (SCREENS / name).write_text(text)


if __name__ == "__main__":
    main()
