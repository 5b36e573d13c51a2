"""Plots of a report as SVG: improvements, engines before and after, timelines, rooflines, time and
money.

Each plot is a pure function of values. Colours are classes of the style sheet, so that plots work in
dark mode. A mark's title says what it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from agentctl.reports.markup import Html, element
from agentctl.views.improvement_path import ImprovementPath, VerdictPoint
from agentctl.views.roofline import KernelRoofline
from agentctl.views.timeline import BusyTimeline

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 18, 44

MAX_DOTS = 1500
"""The maximum number of verdicts drawn; of more, every n-th and each improvement."""
SHADES = 10
"""Shades of a timeline."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps values to positions on an axis, linear or logarithmic."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value; values outside are put on the edge."""
        low, high, value = (self._to_linear(one) for one in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.begin + (self.end - self.begin) * min(1.0, max(0.0, share)), 2)

    def _to_linear(self, value: float) -> float:
        return log10(max(value, 1e-300)) if self.log else value

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values on the axis."""
        return _decade_ticks(self.low, self.high) if self.log else _round_ticks(self.low, self.high, most)


def _round_ticks(low: float, high: float, most: int) -> list[float]:
    if not (isfinite(low) and isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / max(1, most - 1)
    size = 10.0 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(step * number, 12) for number in range(ceil(low / step), floor(high / step) + 1)]


def _decade_ticks(low: float, high: float) -> list[float]:
    found = [
        factor * 10.0**power
        for power in range(floor(log10(low)), ceil(log10(high)) + 1)
        for factor in ((1,) if high / low > 1000 else (1, 2, 5))
    ]
    return [one for one in found if low <= one <= high]


def _draw_axes(across: AxisScale, up: AxisScale, names: tuple[str, str]) -> Iterator[Html]:
    for value in up.ticks():
        y = up.position(value)
        yield element("line", class_="grid", x1=across.begin, x2=across.end, y1=y, y2=y)
        yield element("text", f"{value:g}", class_="dim end", x=across.begin - 8, y=y + 4)
    for value in across.ticks(8):
        yield element("text", f"{value:g}", class_="dim mid", x=across.position(value), y=up.begin + 18)
    corner = f"M{across.begin} {up.end}V{up.begin}H{across.end}"
    yield element("path", class_="axis", d=corner)
    yield element("text", names[0], class_="dim end", x=across.end, y=up.begin + 36)
    yield element("text", names[1], class_="dim", x=4, y=up.end - 5)


def _svg_plot(height: int, label: str, *content: Iterable[Html]) -> Html:
    inside = [piece for pieces in content for piece in pieces]
    return element("svg", inside, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)


# --- improvements ----------------------------------------------------------------------------------


def plot_progress(path: ImprovementPath, bounds: Mapping[str, float]) -> Html | None:
    """Plot latencies over verdicts: a dot for each, the best as a line, improvements by number.

    `bounds` are lower bounds in ms, by name; a bound far below all latencies is left out.
    """
    timed = [point.ms for point in path.points if point.ms is not None]
    if not timed:
        return None
    shown = {name: ms for name, ms in bounds.items() if ms > 0.4 * min(timed)}
    low, high = min([*timed, *shown.values()]), max(timed)
    log = high > 6 * low
    height = 360
    across = AxisScale(0.5, len(path.points) + 0.5, LEFT, WIDTH - RIGHT)
    up = AxisScale(low * (0.88 if shown else 0.96), high * 1.06, height - BOTTOM, TOP + 8, log=log)
    how = "" if path.predicted is None else ", predicted" if path.predicted else ", measured"
    return _svg_plot(
        height,
        f"latency of {len(timed)} correct kernels over {len(path.points)} verdicts, with the best so far",
        _draw_axes(across, up, ("verdicts", f"ms{how}{', logarithmic' if log else ''}")),
        _draw_bounds(shown, across, up),
        _draw_dots(path.points, across, up),
        _draw_best(path.points, across, up),
        _draw_marks(path, across, up),
    )


def _draw_bounds(bounds: Mapping[str, float], across: AxisScale, up: AxisScale) -> Iterator[Html]:
    """Yield lines with their names; the upper one's name is above it, because the lines may be close."""
    for place, (name, ms) in enumerate(sorted(bounds.items(), key=lambda pair: pair[1])):
        y, text = up.position(ms), f"{name} {ms:.4g} ms"
        yield element("line", class_="bound", x1=across.begin, x2=across.end, y1=y, y2=y)
        yield element("text", text, class_="dim end", x=across.end - 4, y=y - 5 if place else y + 14)


def _draw_dots(points: Sequence[VerdictPoint], across: AxisScale, up: AxisScale) -> Iterator[Html]:
    step = max(1, ceil(len(points) / MAX_DOTS))
    for point in points[::step]:
        x = across.position(point.evaluations)
        title = element(
            "title", f"{point.candidate}: {point.verdict}{'' if point.ms is None else f', {point.ms:.4g} ms'}"
        )
        if point.ms is None:
            yield element("path", title, class_="miss", d=f"M{x - 3} {up.begin - 9}l6 6m-6 0l6 -6")
        else:
            yield element("circle", title, class_="dot", cx=x, cy=up.position(point.ms), r=4)


def _draw_best(points: Sequence[VerdictPoint], across: AxisScale, up: AxisScale) -> Iterator[Html]:
    pieces: list[str] = []
    last: float | None = None
    for point in points:
        if point.best_ms is not None and point.best_ms != last:
            x, y = across.position(point.evaluations), up.position(point.best_ms)
            pieces.append(f"M{x} {y}" if not pieces else f"H{x}V{y}")
            last = point.best_ms
    if pieces:
        yield element("path", class_="best", d="".join([*pieces, f"H{across.end}"]))


def _draw_marks(path: ImprovementPath, across: AxisScale, up: AxisScale) -> Iterator[Html]:
    places = {point.candidate: point for point in path.points}
    for number, one in enumerate(path.line[1:], 1):
        point = places.get(one.candidate)
        if point is None or point.ms is None:
            continue
        x, y = across.position(point.evaluations), up.position(point.ms)
        yield element(
            "circle", element("title", f"{one.title}: {point.ms:.4g} ms"), class_="mark", cx=x, cy=y, r=9
        )
        yield element("text", str(number), class_="mid in", x=x, y=y + 4)


# --- engines ---------------------------------------------------------------------------------------


def plot_engines(
    old: Mapping[str, float], new: Mapping[str, float], totals: tuple[float, float]
) -> Html | None:
    """Plot how long each engine works in two kernels, in ms; `totals` are the kernels' latencies."""
    names = [name for name in {**old, **new} if max(old.get(name, 0.0), new.get(name, 0.0)) > 0]
    if not names:
        return None
    names.sort(key=lambda name: -max(old.get(name, 0.0), new.get(name, 0.0)))
    row, left = 46, 92
    across = AxisScale(0.0, max(totals), left, WIDTH - 170)
    rows: list[Html] = []
    for number, name in enumerate(names):
        y = 8 + number * row
        rows.append(element("text", name, class_="end", x=left - 10, y=y + 22))
        for place, (values, kind, total) in enumerate(((old, "old", totals[0]), (new, "new", totals[1]))):
            value, top = values.get(name, 0.0), y + place * 17
            rows.append(
                element(
                    "rect",
                    class_=kind,
                    x=left,
                    y=top,
                    width=max(0.5, across.position(value) - left),
                    height=14,
                )
            )
            share = 100 * value / total if total else 0.0
            text = f"{value:.4g} ms, {share:.0f} %"
            rows.append(element("text", text, class_="dim", x=across.position(value) + 7, y=top + 12))
    return _svg_plot(len(names) * row + 8, "busy time of each engine, before and after", rows)


def plot_timelines(shown: Sequence[tuple[str, BusyTimeline]]) -> Html | None:
    """Plot when each queue is busy, darker if busier, with all kernels on one time scale."""
    span = max((one.span_ms for _, one in shown), default=0.0)
    if span <= 0:
        return None
    left, row = 128, 20
    across = AxisScale(0.0, span, left, WIDTH - RIGHT)
    made: list[Html] = []
    y = 18
    for kind, (title, one) in zip(("old", "new"), shown, strict=False):
        made.append(element("text", title, x=left, y=y - 4))
        for name, parts in one.busy_percent.items():
            made += _draw_lane(name.replace("_", " "), parts, one.span_ms, (across, y, row - 4, kind))
            y += row
        y += 30
    base = y - 22
    made += [
        element("text", f"{value:g}", class_="dim mid", x=across.position(value), y=base + 14)
        for value in across.ticks(8)
    ]
    made.append(element("text", "ms", class_="dim end", x=left - 10, y=base + 14))
    return _svg_plot(base + 22, "busy engines and queues over time", made)


def _draw_lane(
    name: str, parts: Sequence[int], span: float, place: tuple[AxisScale, float, float, str]
) -> Iterator[Html]:
    """Yield one queue; neighbouring pieces of equal shade become one rectangle."""
    across, y, height, kind = place
    yield element("text", name, class_="dim end", x=across.begin - 10, y=y + height - 4)
    yield element(
        "rect", class_="lane", x=across.begin, y=y, width=across.position(span) - across.begin, height=height
    )
    shades = [round(SHADES * min(100, max(0, part)) / 100) for part in parts]
    begin = 0
    for end in range(1, len(shades) + 1):
        if end < len(shades) and shades[end] == shades[begin]:
            continue
        if shades[begin]:
            x, stop = (across.position(span * edge / len(shades)) for edge in (begin, end))
            opacity = shades[begin] / SHADES
            yield element(
                "rect", class_=kind, x=x, y=y, width=round(stop - x, 2), height=height, fill_opacity=opacity
            )
        begin = end


# --- roofline --------------------------------------------------------------------------------------


def plot_roofline(shown: Sequence[tuple[str, KernelRoofline]]) -> Html | None:
    """Plot kernels under the roofline of their device: operations per second over operations per byte."""
    points = [
        (title, one.intensity, one.attained_flops)
        for title, one in shown
        if one.intensity is not None and one.attained_flops is not None
    ]
    if not points:
        return None
    device = shown[0][1]
    least = min([device.ridge, *(intensity for _, intensity, _ in points)]) / 4
    most = max([device.ridge, *(intensity for _, intensity, _ in points)]) * 4
    lowest = min(flops for _, _, flops in points) / 3
    height = 340
    across = AxisScale(least, most, LEFT, WIDTH - RIGHT, log=True)
    up = AxisScale(lowest / 1e12, device.peak_flops / 1e12 * 1.6, height - BOTTOM, TOP + 8, log=True)
    start = max(least, lowest / device.bandwidth_bytes)
    foot = (across.position(start), up.position(start * device.bandwidth_bytes / 1e12))
    knee = (across.position(device.ridge), up.position(device.peak_flops / 1e12))
    roof = f"M{foot[0]} {foot[1]}L{knee[0]} {knee[1]}H{across.end}"
    peak = f"{device.peak_flops / 1e12:.4g} TFLOPS; {device.bandwidth_bytes / 1e9:.4g} GB/s"
    marks: list[Html] = [
        element("path", class_="roof", d=roof),
        element("text", peak, class_="dim end", x=across.end - 4, y=knee[1] - 7),
    ]
    for place, (kind, (title, intensity, flops)) in enumerate(zip(("old", "new"), points, strict=False)):
        x, y = across.position(intensity), up.position(flops / 1e12)
        # the two may overlap, so their names go to different sides
        side = {"x": x + 12} if place else {"x": x - 12, "class_": "end"}
        marks += [
            element("circle", element("title", title), class_=kind, cx=x, cy=y, r=7),
            element("text", title, y=y + 4, **side),
        ]
    names = ("operations per byte of HBM", "TFLOPS")
    return _svg_plot(height, "kernels under the roofline", _draw_axes(across, up, names), marks)


def plot_engine_roofs(shown: Sequence[tuple[str, KernelRoofline]]) -> Html | None:
    """Plot the element-wise engines under their roofs, each by its letter.

    Both axes are relative, so that engines with different peaks share one roof. Up: the share of an
    engine's peak. Across: the engine's time over the memory traffic's time, which is 1 at the ridge.
    """
    points = [
        (kind, title, engine, engine.intensity / engine.ridge)
        for kind, (title, one) in zip(("old", "new"), shown, strict=False)
        for engine in one.engines
    ]
    if not points:
        return None
    least = min(1.0, *(across for *_, across in points)) / 3
    most = max(1.0, *(across for *_, across in points)) * 3
    low = min(engine.active_percent for _, _, engine, _ in points) / 3
    height = 320
    across = AxisScale(least, most, LEFT, WIDTH - RIGHT, log=True)
    up = AxisScale(low, 170.0, height - BOTTOM, TOP + 8, log=True)
    start = max(least, low / 100.0)
    slope = f"M{across.position(start)} {up.position(100.0 * start)}"
    roof = f"{slope}L{across.position(1.0)} {up.position(100.0)}H{across.end}"
    marks: list[Html] = [
        element("path", class_="roof", d=roof),
        element("text", "the engine's peak", class_="dim end", x=across.end - 4, y=up.position(100.0) - 7),
    ]
    for kind, title, engine, place in points:
        name = f"{engine.engine} engine, {title}: {engine.active_percent:.3g} % of its peak"
        x, y = across.position(place), up.position(engine.active_percent)
        marks.append(element("circle", element("title", name), class_=kind, cx=x, cy=y, r=9))
        marks.append(element("text", engine.engine[0].upper(), class_="mid letter", x=x, y=y + 4))
    names = ("time at work over the time that the bytes take", "% of the engine's peak")
    label = "vector, scalar and GpSimd engine under their roofs, before and after"
    return _svg_plot(height, label, _draw_axes(across, up, names), marks)


# --- time and money --------------------------------------------------------------------------------


def plot_shares(parts: Mapping[str, float]) -> Html | None:
    """Plot the parts of a whole as one bar."""
    total = sum(parts.values())
    if total <= 0:
        return None
    made: list[Html] = []
    x = 0.0
    for number, (name, value) in enumerate(parts.items()):
        width = WIDTH * value / total
        title = element("title", f"{name}: {100 * value / total:.1f} %")
        made.append(
            element("rect", title, class_=f"k{number}", x=round(x, 2), y=0, width=round(width, 2), height=26)
        )
        x += width
    return _svg_plot(26, "shares of the time", made)


def plot_curve(points: Sequence[tuple[float, float]], names: tuple[str, str]) -> Html | None:
    """Plot a quantity that only grows, as a staircase."""
    if not points or points[-1][1] <= 0:
        return None
    height = 240
    across = AxisScale(0.0, points[-1][0] or 1.0, LEFT, WIDTH - RIGHT)
    up = AxisScale(0.0, points[-1][1] * 1.05, height - BOTTOM, TOP + 8)
    path = f"M{across.begin} {up.begin}" + "".join(
        f"H{across.position(x)}V{up.position(y)}" for x, y in points
    )
    return _svg_plot(
        height,
        f"{names[1]} over {names[0]}",
        _draw_axes(across, up, names),
        [element("path", class_="best", d=path)],
    )
