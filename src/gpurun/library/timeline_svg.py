"""A timeline as a picture: a lane for each process, a bar for each step (SVG 1.1); pure."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.library.timeline import Step

_ROW, _LEFT, _WIDTH, _RIGHT = 20, 90, 760, 330  # in pixels: a row, before the bars, the bars, for the names
_COLOURS = {"caller": "#3566a5", "starter": "#8a8a8a", "init": "#4c8c3f"}
_OTHER = "#b0703a"


def as_svg(steps: list[Step], title: str) -> str:
    """The picture of *steps*, with bars by the clock, from left to right."""
    end = max((step.start + step.length for step in steps), default=0.0) or 1.0
    height = _ROW * (len(steps) + 3)
    scale = _WIDTH / end
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="14">{escape(title)}</text>',
    ]
    for mark in range(11):
        x = _LEFT + _WIDTH * mark / 10
        parts.append(f'<line x1="{x:.0f}" y1="{_ROW * 2 - 6}" x2="{x:.0f}" y2="{height}" stroke="#e4e4e4"/>')
        at = f"{end * mark / 10:.1f} ms"
        parts.append(f'<text x="{x:.0f}" y="{_ROW * 2 - 8}" fill="#777777" text-anchor="middle">{at}</text>')
    for number, step in enumerate(steps):
        y = _ROW * (number + 2)
        x, width = _LEFT + step.start * scale, max(step.length * scale, 1.5)
        colour = _COLOURS.get(step.process, _OTHER)
        most = ", ".join([f"{name} {count}" for name, count in step.most])
        tooltip = f"{step.process}: {step.name}: {step.length:.2f} ms, {step.calls} system calls ({most})"
        parts.append(f'<text x="8" y="{y + 13}" fill="{colour}">{escape(step.process)}</text>')
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}" fill="{colour}">'
            f"<title>{escape(tooltip)}</title></rect>"
        )
        parts.append(f'<text x="{_place(x, width):.1f}" y="{y + 13}">{escape(step.name)} ({step.length:.1f} ms)</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _place(x: float, width: float) -> float:
    """Where the name of a bar begins: to the right of it."""
    return x + width + 4


def as_html(steps: list[Step], title: str) -> str:
    """A page with the picture and a table of all steps."""
    rows = "".join(
        [
            f"<tr><td>{step.start:.2f}</td><td>{step.length:.2f}</td><td>{escape(step.process)}</td><td>{step.calls}</td>"
            f"<td>{escape(step.name)}</td><td>{escape(', '.join([f'{n} {c}' for n, c in step.most]))}</td></tr>\n"
            for step in steps
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>body{font-family:sans-serif} td,th{padding:2px 10px;text-align:left} td:nth-child(-n+2){text-align:right}"
        f"</style></head><body>\n<h1>{escape(title)}</h1>\n{as_svg(steps, title)}"
        "<p>Measured under strace(1), which makes everything slower: the order and the shares count.</p>\n"
        "<table><tr><th>at ms</th><th>ms</th><th>process</th><th>system calls</th><th>step</th><th>most of them</th></tr>\n"
        f"{rows}</table></body></html>\n"
    )
