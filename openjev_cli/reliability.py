"""A reliability diagram as SVG: how often answers were right against how sure they were (Guo et al. 2017,
figure 1). Bars stand for the last of the given series, a line for one before it; below them how many answers
each bin holds. Text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openjev_cli.metrics import Bin

_WIDTH, _HEIGHT = 420, 500
_LEFT, _TOP, _SIDE = 56, 56, 330
_COUNTS_TOP, _COUNTS_HEIGHT = 410, 48
# The title is the widest text; a bold character is about this share of its size wide.
_MARGIN, _TITLE_CHAR = 12, 0.63
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.g{stroke:#ddd}.a{stroke:#222}"
    ".d{stroke:#888;stroke-dasharray:5 4}.b{fill:#4477aa;fill-opacity:.75}.c{fill:#bbb}"
    ".n{fill:none;stroke:#cc6633;stroke-width:2}.p{fill:#cc6633}"
)


class Series(NamedTuple):
    """One curve. name: for the legend."""

    name: str
    bins: Sequence[Bin]


def svg(title: str, series: Sequence[Series]) -> str:
    """Return the diagram of one or two series, the last one as bars."""
    *lines, bars = series
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{_escaped(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_MARGIN}" y="22" style="{_title_style(title)}">{_escaped(title)}</text>',
        *_legend(series),
        *_grid(),
        *(_bar(one) for one in bars.bins if one.count),
        f'<line class="d" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>',
    ]
    for line in lines:
        parts += _line(line.bins)
    parts += _counts(bars.bins)
    return "\n".join([*parts, "</svg>", ""])


def _title_style(title: str) -> str:
    """Return a font that is small enough for the title to fit."""
    fits_px = (_WIDTH - 2 * _MARGIN) / (_TITLE_CHAR * max(1, len(title)))
    return f"font-weight:bold;font-size:{min(14.0, fits_px):.1f}px"


def _x(share: float) -> str:
    return f"{_LEFT + share * _SIDE:.1f}"


def _y(share: float) -> str:
    return f"{_TOP + (1 - share) * _SIDE:.1f}"


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    at = _LEFT
    for i, one in enumerate(series):
        kind = "b" if i == len(series) - 1 else "p"
        parts.append(f'<rect class="{kind}" x="{at}" y="33" width="11" height="11"/>')
        parts.append(f'<text x="{at + 16}" y="43">{_escaped(one.name)}</text>')
        at += 34 + 7 * len(one.name)
    return parts


def _grid() -> list[str]:
    parts = []
    for tenth in range(0, 11, 2):
        share = tenth / 10
        parts.append(f'<line class="g" x1="{_x(0)}" y1="{_y(share)}" x2="{_x(1)}" y2="{_y(share)}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{float(_y(share)) + 4:.1f}" text-anchor="end">{share:.1f}</text>'
        )
        parts.append(f'<text x="{_x(share)}" y="{_TOP + _SIDE + 15}" text-anchor="middle">{share:.1f}</text>')
    middle = _TOP + _SIDE / 2
    parts += [
        f'<line class="a" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(0)}"/>',
        f'<line class="a" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(0)}" y2="{_y(1)}"/>',
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">share right</text>',
    ]
    return parts


def _bar(one: Bin) -> str:
    height = one.accuracy * _SIDE
    words = f"{one.count} answers at {one.confidence:.2f}: {one.accuracy:.2f} right"
    return (
        f'<rect class="b" x="{_x(one.low)}" y="{_y(one.accuracy)}"'
        f' width="{(one.high - one.low) * _SIDE - 1:.1f}" height="{height:.1f}"><title>{words}</title></rect>'
    )


def _line(bins: Sequence[Bin]) -> list[str]:
    points = [(_x(one.confidence), _y(one.accuracy)) for one in bins if one.count]
    dots = [f'<circle class="p" cx="{x}" cy="{y}" r="3"/>' for x, y in points]
    return [f'<polyline class="n" points="{" ".join(f"{x},{y}" for x, y in points)}"/>', *dots]


def _counts(bins: Sequence[Bin]) -> list[str]:
    most = max((one.count for one in bins), default=0) or 1
    parts = []
    for one in bins:
        height = one.count / most * _COUNTS_HEIGHT
        parts.append(
            f'<rect class="c" x="{_x(one.low)}" y="{_COUNTS_TOP + _COUNTS_HEIGHT - height:.1f}"'
            f' width="{(one.high - one.low) * _SIDE - 1:.1f}" height="{height:.1f}"/>'
        )
    total = sum(one.count for one in bins)
    below = _COUNTS_TOP + _COUNTS_HEIGHT + 16
    words = f"probability of the answer; {total} answers"
    parts.append(f'<text x="{_x(0.5)}" y="{below}" text-anchor="middle">{words}</text>')
    return parts


def _escaped(text: str) -> str:
    """Return the text as XML 1.0 takes it."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
