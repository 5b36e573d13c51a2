"""The picture of a soak: one small panel for each quantity, from 0 up, over the events stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.faults.soak.growth import ALLOWED_PERCENT, Quantity

COLUMNS = 3
WIDTH, HEIGHT = 300, 160
LEFT, TOP, RIGHT, BOTTOM = 46, 30, 14, 24
HEADROOM = 1.25


def draw_svg(found: Sequence[Quantity], caption: str) -> str:
    """Return the panels as one SVG document."""
    rows = -(-len(found) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 24
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, one in enumerate(found):
        row, column = divmod(place, COLUMNS)
        body += [f'<g transform="translate({column * WIDTH} {row * HEIGHT})">', *_draw_panel(one), "</g>"]
    body += [f'<text x="{LEFT}" y="{height - 8}" fill="#555">{escape(caption)}</text>', "</svg>", ""]
    return "\n".join(body)


def _draw_panel(one: Quantity) -> Iterator[str]:
    last = one.values[-1][0]
    highest = HEADROOM * max(value for _, value in one.values) or 1.0
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(events: float, value: float) -> tuple[float, float]:
        return round(LEFT + inner * events / last, 1), round(TOP + tall * (1 - value / highest), 1)

    color = "#1f5fa8" if one.is_flat else "#c0392b"
    yield f'<text x="{LEFT}" y="18" fill="#222">{escape(one.name)}</text>'
    yield (f'<text x="{WIDTH - RIGHT}" y="18" text-anchor="end" fill="{color}">{one.percent:+.1f} %</text>')
    yield f'<rect x="{LEFT}" y="{TOP}" width="{inner}" height="{tall}" fill="none" stroke="#bbb"/>'
    limit = at(0, one.before * (1 + ALLOWED_PERCENT / 100))[1]
    yield (
        f'<line x1="{LEFT}" x2="{LEFT + inner}" y1="{limit}" y2="{limit}" stroke="#999" '
        'stroke-dasharray="3 3"/>'
    )
    points = " ".join(f"{x},{y}" for x, y in (at(*value) for value in one.values))
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>'
    for value in (0.0, highest):
        yield (
            f'<text x="{LEFT - 4}" y="{at(0, value)[1] + 4}" text-anchor="end" fill="#555">'
            f"{_format_number(value)}</text>"
        )
    yield f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#555">0</text>'
    yield (f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end" fill="#555">{last:,} events</text>')


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value == 0 or value >= 100 else f"{value:.3g}"
