"""Plots as SVG, for reports and the page: improvements, engines, timelines, rooflines, time and money.

Each plot is a pure function from values to a tree of `SvgNode`. A report writes the tree as markup, the page
builds it from JSON. Colours are classes of `page/static/plots.css`, so that plots work in dark mode. A mark's
title says what it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from agentctl.formatting import format_percent, format_scaled
from agentctl.views.improvement_path import ImprovementPath, VerdictPoint
from agentctl.views.roofline import EngineRoof, EngineShare, KernelRoofline
from agentctl.views.spending import SpendPoint
from agentctl.views.timeline import BusyTimeline
from targets.base import ProfileVocabulary

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 18, 44
NAME_HEIGHT = 14

OLD, NEW = "old", "new"
"""The classes of what is compared with, and of what is shown."""

MAX_DOTS = 1500
"""The maximum number of verdicts drawn; of more, every n-th and each improvement."""
SHADES = 10
"""Shades of a timeline."""


@dataclass(frozen=True, slots=True)
class SvgNode:
    """An element of a drawing; text among the children is never markup."""

    tag: str
    attributes: dict[str, str | float]
    children: tuple[SvgNode | str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlotFigure:
    """A drawing with its caption; `legend` has a colour class and a text for each thing that is drawn."""

    name: str
    drawing: SvgNode
    caption: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlottedKernel:
    """A kernel in plots of profiles; `kind` is `OLD` or `NEW`."""

    title: str
    kind: str
    vocabulary: ProfileVocabulary
    shares: tuple[EngineShare, ...]
    timeline: BusyTimeline | None
    roofline: KernelRoofline | None


def element(tag: str, *children: SvgNode | str, **attributes: str | float) -> SvgNode:
    """Return a node; `_` in attribute names becomes `-`, and a trailing one is dropped: `class_`."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return SvgNode(tag, named, children)


def plot_profiles(kernels: Sequence[PlottedKernel]) -> tuple[PlotFigure, ...]:
    """Return the plots of kernels' profiles that their profiles suffice for."""
    drawn = (
        plot_engines(kernels),
        plot_timelines(kernels),
        plot_roofline(kernels),
        plot_engine_roofs(kernels),
    )
    return tuple(one for one in drawn if one is not None)


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


def _draw_axes(across: AxisScale, up: AxisScale, names: tuple[str, str]) -> Iterator[SvgNode]:
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


def _svg_plot(height: int, label: str, *content: Iterable[SvgNode]) -> SvgNode:
    inside = [piece for pieces in content for piece in pieces]
    box = f"0 0 {WIDTH} {height}"
    return element("svg", *inside, class_="chart", viewBox=box, role="img", aria_label=label)


# --- improvements ----------------------------------------------------------------------------------


def plot_progress(path: ImprovementPath, bounds: Mapping[str, float]) -> PlotFigure | None:
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
    drawn = _svg_plot(
        height,
        f"latency of {len(timed)} correct kernels over {len(path.points)} verdicts, with the best so far",
        _draw_axes(across, up, ("verdicts", f"ms{how}{', logarithmic' if log else ''}")),
        _draw_bounds(shown, across, up),
        _draw_dots(path.points, across, up),
        _draw_best(path.points, across, up),
        _draw_marks(path, across, up),
    )
    return PlotFigure(
        "path",
        drawn,
        "A dot is a correct kernel, a cross one that is not; the line is the best so far, numbers are the "
        "changes below.",
    )


def _draw_bounds(bounds: Mapping[str, float], across: AxisScale, up: AxisScale) -> Iterator[SvgNode]:
    """Yield lines with their names, because the lines may be close: the lower one's name is below its line.

    Where that would be under the axis, it is above the line, at the line's other end.
    """
    for place, (name, ms) in enumerate(sorted(bounds.items(), key=lambda pair: pair[1])):
        y, text = up.position(ms), f"{name} {ms:.4g} ms"
        yield element("line", class_="bound", x1=across.begin, x2=across.end, y1=y, y2=y)
        if place == 0 and y + NAME_HEIGHT >= up.begin:
            yield element("text", text, class_="dim", x=across.begin + 4, y=y - 5)
        else:
            below = y + NAME_HEIGHT if place == 0 else y - 5
            yield element("text", text, class_="dim end", x=across.end - 4, y=below)


def _draw_dots(points: Sequence[VerdictPoint], across: AxisScale, up: AxisScale) -> Iterator[SvgNode]:
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


def _draw_best(points: Sequence[VerdictPoint], across: AxisScale, up: AxisScale) -> Iterator[SvgNode]:
    pieces: list[str] = []
    last: float | None = None
    for point in points:
        if point.best_ms is not None and point.best_ms != last:
            x, y = across.position(point.evaluations), up.position(point.best_ms)
            pieces.append(f"M{x} {y}" if not pieces else f"H{x}V{y}")
            last = point.best_ms
    if pieces:
        yield element("path", class_="best", d="".join([*pieces, f"H{across.end}"]))


def _draw_marks(path: ImprovementPath, across: AxisScale, up: AxisScale) -> Iterator[SvgNode]:
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


def plot_engines(kernels: Sequence[PlottedKernel]) -> PlotFigure | None:
    """Plot the shares of a profile as bars: how busy engines are, and how near to peaks."""
    titles = list(dict.fromkeys(share.title for one in kernels for share in one.shares))
    if not titles:
        return None
    bar, gap, left = 17, 12, 150
    across = AxisScale(0.0, 100.0, left, WIDTH - 190)
    made: list[SvgNode] = []
    y = 8.0
    for title in titles:
        rows = [(one, share) for one in kernels for share in one.shares if share.title == title]
        made.append(element("text", title, class_="end", x=left - 10, y=y + bar * len(rows) / 2 + 3))
        for one, share in rows:
            made += _draw_bar(share, one, across, y=y)
            y += bar
        y += gap
    legend = tuple((one.kind, one.title) for one in kernels)
    label = "how busy each engine is: " + "; ".join(
        f"{share.title}, {one.title}: {_describe_share(share)}" for one in kernels for share in one.shares
    )
    caption = "Active, of the kernel's time, and shares of peaks."
    return PlotFigure("engines", _svg_plot(int(y), label, made), caption, legend)


def _draw_bar(share: EngineShare, one: PlottedKernel, across: AxisScale, *, y: float) -> Iterator[SvgNode]:
    end = across.position(share.percent)
    title = element("title", f"{share.title}, {one.title}: {_describe_share(share)}")
    width = max(0.5, end - across.begin)
    yield element("rect", title, class_=one.kind, x=across.begin, y=y, width=width, height=14)
    yield element("text", _describe_share(share), class_="dim", x=end + 7, y=y + 12)


def _describe_share(share: EngineShare) -> str:
    percent = format_percent(share.percent)
    return percent if share.ms is None else f"{share.ms:.4g} ms, {percent}"


def plot_timelines(kernels: Sequence[PlottedKernel]) -> PlotFigure | None:
    """Plot when each queue is busy, darker if busier, with all kernels on one time scale."""
    shown = [(one, one.timeline) for one in kernels if one.timeline is not None and one.timeline.span_ms > 0]
    if not shown:
        return None
    left, row = 128, 20
    across = AxisScale(0.0, max(timeline.span_ms for _, timeline in shown), left, WIDTH - RIGHT - 50)
    made: list[SvgNode] = []
    y = 18
    for one, timeline in shown:
        kind = "predicted" if timeline.predicted else "measured"
        made.append(element("text", f"{one.title}: {timeline.span_ms:.4g} ms {kind}", x=left, y=y - 4))
        for name, parts in timeline.busy_percent.items():
            place = (across, y, row - 4, one.kind)
            made += _draw_lane(name.replace("_", " "), parts, timeline.span_ms, place=place)
            y += row
        y += 30
    base = y - 22
    made += [
        element("text", f"{value:g}", class_="dim mid", x=across.position(value), y=base + 14)
        for value in across.ticks(8)
    ]
    made.append(element("text", "ms", class_="dim end", x=left - 10, y=base + 14))
    return PlotFigure(
        "timeline",
        _svg_plot(base + 22, "busy engines and queues over time", made),
        "Which engine or queue is busy when, without the fixed overhead of any kernel; the darker, the "
        "busier. At the right: busy, of all the time.",
    )


def _draw_lane(
    name: str, parts: Sequence[int], span: float, *, place: tuple[AxisScale, float, float, str]
) -> Iterator[SvgNode]:
    """Yield one queue; neighbouring pieces of equal shade become one rectangle."""
    across, y, height, kind = place
    yield element("text", name, class_="dim end", x=across.begin - 10, y=y + height - 4)
    yield element(
        "rect", class_="lane", x=across.begin, y=y, width=across.position(span) - across.begin, height=height
    )
    mean = sum(parts) / len(parts)
    yield element("text", format_percent(mean), class_="dim", x=across.end + 7, y=y + height - 4)
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


def plot_roofline(kernels: Sequence[PlottedKernel]) -> PlotFigure | None:
    """Plot kernels under the roofline of their device: operations per second over operations per byte."""
    points = [
        (one, one.roofline, one.roofline.intensity, one.roofline.attained_flops)
        for one in kernels
        if one.roofline is not None
        and one.roofline.intensity is not None
        and one.roofline.attained_flops is not None
    ]
    if not points:
        return None
    device = points[-1][1]
    intensities = [device.ridge, *(intensity for _, _, intensity, _ in points)]
    least, most = min(intensities) / 4, max(intensities) * 4
    lowest = min(flops for _, _, _, flops in points) / 3
    height = 340
    across = AxisScale(least, most, LEFT, WIDTH - RIGHT, log=True)
    up = AxisScale(lowest / 1e12, device.peak_flops / 1e12 * 1.6, height - BOTTOM, TOP + 8, log=True)
    start = max(least, lowest / device.bandwidth_bytes)
    foot = (across.position(start), up.position(start * device.bandwidth_bytes / 1e12))
    knee = (across.position(device.ridge), up.position(device.peak_flops / 1e12))
    roof = f"M{foot[0]} {foot[1]}L{knee[0]} {knee[1]}H{across.end}"
    peak = f"{device.peak_flops / 1e12:.4g} TFLOPS; {device.bandwidth_bytes / 1e9:.4g} GB/s"
    marks = [
        element("path", class_="roof", d=roof),
        element("text", peak, class_="dim end", x=across.end - 4, y=knee[1] - 7),
    ]
    for one, _, intensity, flops in points:
        x, y = across.position(intensity), up.position(flops / 1e12)
        # the two may overlap, so their names go to different sides
        side: dict[str, str | float] = {"x": x + 12} if one.kind == NEW else {"x": x - 12, "class_": "end"}
        marks += [
            element("circle", element("title", one.title), class_=f"point {one.kind}", cx=x, cy=y, r=7),
            element("text", one.title, y=y + 4, **side),
        ]
    legend = tuple(
        (one.kind, f"{one.title}: {format_scaled(flops, 'flop/s')}, {_of_the_roof(roofline)}")
        for one, roofline, _, flops in points
    )
    names = (f"operations per byte of {points[-1][0].vocabulary.memory}", "TFLOPS")
    label = "kernels under the roofline. " + ". ".join(text for _, text in legend)
    caption = "Operations of matrix products per second, over those per byte moved."
    drawn = _svg_plot(height, label, _draw_axes(across, up, names), marks)
    return PlotFigure("roofline", drawn, caption, legend)


def _of_the_roof(roofline: KernelRoofline) -> str:
    return f"{format_percent(roofline.attained_percent)} of the roof"


def plot_engine_roofs(kernels: Sequence[PlottedKernel]) -> PlotFigure | None:
    """Plot the element-wise engines under their roofs, each by its letter.

    Both axes are relative, so that engines with different peaks share one roof. Up: the share of an
    engine's peak. Across: the engine's time over the memory traffic's time, which is 1 at the ridge.
    """
    points = [
        (one, engine, engine.intensity / engine.ridge)
        for one in kernels
        if one.roofline is not None
        for engine in one.roofline.engines
    ]
    if not points:
        return None
    least = min(1.0, *(place for *_, place in points)) / 3
    most = max(1.0, *(place for *_, place in points)) * 3
    low = min(engine.active_percent for _, engine, _ in points) / 3
    height = 320
    across = AxisScale(least, most, LEFT, WIDTH - RIGHT, log=True)
    up = AxisScale(low, 170.0, height - BOTTOM, TOP + 8, log=True)
    start = max(least, low / 100.0)
    slope = f"M{across.position(start)} {up.position(100.0 * start)}"
    roof = f"{slope}L{across.position(1.0)} {up.position(100.0)}H{across.end}"
    marks = [
        element("path", class_="roof", d=roof),
        element("text", "the engine's peak", class_="dim end", x=across.end - 4, y=up.position(100.0) - 7),
    ]
    legend: list[tuple[str, str]] = []
    for one, engine, place in points:
        told = _describe_engine(one, engine)
        x, y = across.position(place), up.position(engine.active_percent)
        mark = f"disc {one.kind}"
        disc = element("circle", element("title", told), class_=mark, cx=x, cy=y, r=9)
        letter = one.vocabulary.part_title(engine.engine)[:1]
        marks.append(element("g", disc, element("text", letter, class_="mid letter", x=x, y=y + 4)))
        legend.append((one.kind, told))
    names = ("time at work over the time that the bytes take", "% of the engine's peak")
    label = "engines under their roofs. " + ". ".join(text for _, text in legend)
    memory = points[-1][0].vocabulary.memory
    caption = (
        f"Each engine under its roof, by its first letter. Left of 1 the {memory}'s bandwidth bounds an "
        "engine, right of it the engine itself; on the roof it cannot be faster without less work or fewer "
        "bytes."
    )
    drawn = _svg_plot(height, label, _draw_axes(across, up, names), marks)
    return PlotFigure("engine_roofs", drawn, caption, tuple(legend))


def describe_bandwidth(kernels: Sequence[PlottedKernel]) -> str | None:
    """Return how much of the memory's bandwidth kernels use, as a sentence; None if no profile says it."""
    told = [
        f"{one.title} {format_percent(roof.bandwidth_percent)} "
        f"({format_scaled(roof.moved_bytes, 'B')} at {format_scaled(roof.attained_bytes, 'B/s')})"
        for one in kernels
        if (roof := one.roofline) is not None
    ]
    memory = kernels[-1].vocabulary.memory
    return f"Bandwidth of the {memory} in use: {', '.join(told)}." if told else None


def _describe_engine(one: PlottedKernel, engine: EngineRoof) -> str:
    bound = "the memory" if engine.side == "memory" else "the engine"
    peak = format_scaled(engine.peak, "").strip()
    part = one.vocabulary.part_title(engine.engine)
    return (
        f"{part}, {one.title}: {format_percent(engine.active_percent)} of {peak} lane cycles/s; "
        f"{bound} would bound it first"
    )


# --- time and money --------------------------------------------------------------------------------


def plot_shares(parts: Mapping[str, float]) -> PlotFigure | None:
    """Plot the parts of a whole as one bar."""
    total = sum(parts.values())
    if total <= 0:
        return None
    made: list[SvgNode] = []
    x = 0.0
    for number, (name, value) in enumerate(parts.items()):
        width = WIDTH * value / total
        title = element("title", f"{name}: {100 * value / total:.1f} %")
        made.append(
            element("rect", title, class_=f"k{number}", x=round(x, 2), y=0, width=round(width, 2), height=26)
        )
        x += width
    drawn = _svg_plot(26, "shares of the time", made)
    return PlotFigure("shares", drawn, "Where the time went; several things at once share it.")


def plot_spending(points: Sequence[SpendPoint]) -> PlotFigure | None:
    """Plot what was spent over the time since the run began, as a staircase."""
    if not points or points[-1].usd <= 0:
        return None
    height = 240
    across = AxisScale(0.0, points[-1].seconds or 1.0, LEFT, WIDTH - RIGHT)
    up = AxisScale(0.0, points[-1].usd * 1.05, height - BOTTOM, TOP + 8)
    path = f"M{across.begin} {up.begin}" + "".join(
        f"H{across.position(one.seconds)}V{up.position(one.usd)}" for one in points
    )
    drawn = _svg_plot(
        height,
        "US$ over seconds",
        _draw_axes(across, up, ("seconds", "US$")),
        [element("path", class_="best", d=path)],
    )
    return PlotFigure("spending", drawn, "What was spent.")
