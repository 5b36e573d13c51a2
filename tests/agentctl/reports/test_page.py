"""The report as HTML: one file that asks nobody for anything, and in which what a model wrote is text."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentctl.plots import NEW, OLD, PlottedKernel, SvgNode, plot_progress, plot_roofline
from agentctl.reports.html_page import render_page
from agentctl.reports.style import SHEET
from agentctl.views.improvement_path import ImprovementPath, VerdictPoint
from targets.registry import load_target
from tests.agentctl.reports.conftest import ROOFLINE

TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "h1", "h2", "h3",
    "p", "dl", "dt", "dd", "div", "span", "strong", "br", "table", "thead", "tbody", "tr", "th", "td", "ol",
    "ul", "li", "pre", "code", "a", "details", "summary", "figure", "figcaption", "svg", "line", "text",
    "path", "circle", "rect", "g",
}  # fmt: skip


class Read(HTMLParser):
    """What a browser would make of a page: elements, links, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [(name, value) for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_a_report_says_what_was_found(made):
    found = Read(render_page(made))
    assert found.open == []
    assert f"{made.run.speedup:.2f}x as fast (predicted)" in found.text
    for line in made.best.source.splitlines():
        assert line in found.text
    for one in made.path.line[1:]:
        assert one.title in found.text
    for command in (*made.reproduction.judge, *made.reproduction.again):
        assert command in found.text
    assert made.tried.failures[0].examples[0] in found.text
    assert made.environment.toolchain in found.text
    assert "All latencies are predicted" in found.text


def test_a_latency_below_the_model_bound_is_explained(made, below_bound):
    low, note = below_bound
    assert note in Read(render_page(low)).text
    assert "impossible" not in Read(render_page(made)).text


def test_nothing_that_was_written_by_others_is_markup(hostile):
    text = render_page(hostile)
    found = Read(text)
    assert found.tags <= TAGS
    assert not {name for name in found.attributes if name.startswith("on") or name == "style"}
    assert all(value.startswith("data:text/") for _, value in found.links)
    assert '<script>fetch("http://evil.test")</script>' in found.text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\u202e" in found.text


@pytest.mark.parametrize("products", [True, False])
def test_a_roofline_is_drawn_with_and_without_products(hostile, products):
    """A kernel that the vector engine or the bandwidth bounds has its place under a roof, too."""
    plain = replace(ROOFLINE, intensity=None, attained_flops=None, ceiling_flops=None, attained_percent=None)
    kernels = {
        name: replace(getattr(hostile, name), roofline=ROOFLINE if products else plain)
        for name in ("initial", "best")
    }
    text = render_page(replace(hostile, **kernels))
    assert ("Operations of matrix products" in text) is products
    assert "Vector engine, best: 30.0 % of 120.0 G lane cycles/s" in text
    assert "under its roof" in text


def walk_nodes(node: SvgNode) -> Iterator[SvgNode]:
    yield node
    for child in node.children:
        if isinstance(child, SvgNode):
            yield from walk_nodes(child)


def test_a_rooflines_axes_are_logarithmic():
    """Ten times the intensity, or the rate, is the same distance anywhere."""
    ridge, peak = ROOFLINE.ridge, ROOFLINE.peak_flops
    kernels = [
        replace(ROOFLINE, intensity=ridge / share, attained_flops=peak / share, bandwidth_bytes=peak / ridge)
        for share in (100, 10)
    ]
    vocabulary = load_target("trn2").profile
    figure = plot_roofline(
        [
            PlottedKernel(kind, kind, vocabulary, (), None, own)
            for kind, own in zip((OLD, NEW), kernels, strict=True)
        ]
    )
    assert figure is not None
    nodes = list(walk_nodes(figure.drawing))
    (first_x, first_y), (second_x, second_y) = [
        (node.attributes["cx"], node.attributes["cy"]) for node in nodes if node.tag == "circle"
    ]
    (roof,) = [str(node.attributes["d"]) for node in nodes if node.attributes.get("class") == "roof"]
    knee_x, knee_y = [float(number) for number in re.findall(r"[\d.]+", roof)][2:4]
    assert knee_x - second_x == pytest.approx(second_x - first_x, abs=0.1)
    assert knee_y - second_y == pytest.approx(second_y - first_y, abs=0.1)


def test_without_profiles_nothing_is_said_of_colours(made):
    bare = {
        name: replace(getattr(made, name), busy_ms={}, counters={}, timeline=None, roofline=None)
        for name in ("initial", "best")
    }
    text = render_page(replace(made, **bare))
    assert "Grey is the initial kernel" not in text
    assert "No profile was recorded" in text


def test_the_kernel_can_be_saved_from_the_report(made):
    ((_, link),) = Read(render_page(made)).links
    assert b64decode(link.partition(",")[2]).decode() == made.best.source


def test_a_run_without_a_kernel_has_a_report(made):
    run = replace(made.run, speedup=None, best=None, best_ms=None, initial_ms=None, predicted=None)
    path = replace(made.path, bests=(), line=(), points=(), predicted=None)
    found = Read(render_page(replace(made, run=run, initial=None, best=None, diff="", path=path)))
    assert "no correct kernel" in found.text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_contrast(scheme):
    """Text against what it stands on, by WCAG 2's formula: at least 4.5 to 1."""
    light, dark = re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
    values = dict(re.findall(r"--(\w+): #([0-9a-f]{6})", light if scheme == "light" else dark))
    for text in ("text", "dim", "new", "good", "bad", "kw", "str", "num", "com", "call", "name"):
        for back in ("back", "panel"):
            assert contrast(values[text], values[back]) >= 4.5, (text, back)
    for back in ("add", "del"):
        assert contrast(values["text"], values[back]) >= 4.5


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
@pytest.mark.needs("chromium", package="chromium")
def test_a_browser_shows_it_without_asking_anybody(made, hostile, tmp_path):
    """Both widths and schemes: nothing is refused by the policy, requested, or wider than the window."""
    from playwright.sync_api import sync_playwright

    (tmp_path / "made.html").write_text(render_page(made), encoding="utf-8")
    (tmp_path / "hostile.html").write_text(render_page(hostile), encoding="utf-8")
    shots = os.environ.get("SCREENSHOTS")
    said: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name in ("made", "hostile"):
            for width, scheme in ((1280, "light"), (400, "dark")):
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
                )
                shown = context.new_page()
                shown.on("console", lambda message: said.append(message.text))
                shown.on("request", lambda request: said.append(request.url))
                shown.on("dialog", lambda dialog: said.append(dialog.message))
                shown.goto((tmp_path / f"{name}.html").as_uri())
                wide = shown.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, (name, width)
                assert shown.evaluate("getComputedStyle(document.body).maxWidth") != "none"
                if shots:
                    place = Path(shots) / f"report-{name}-{width}-{scheme}.png"
                    shown.screenshot(path=place, full_page=True)
                context.close()
        browser.close()
    assert [text for text in said if not text.startswith(tmp_path.as_uri())] == []


@pytest.mark.parametrize("slowest_ms", [0.03, 0.2, 2.0, 200.0])
def test_names_of_bounds_stay_above_the_axis(slowest_ms):
    points = tuple(
        VerdictPoint(number, 1.0, f"r0.b0.p{number}.k0.f0", "correct", ms, ms)
        for number, ms in enumerate((slowest_ms, 0.025), 1)
    )
    path = ImprovementPath("run", True, (), (), (), (), points)
    drawn = plot_progress(path, {"model bound": 0.0205, "roofline": 0.0202}).drawing
    axis = next(one for one in drawn.children if one.attributes.get("class") == "axis")
    bottom = float(str(axis.attributes["d"]).rpartition("V")[2].partition("H")[0])
    named = {one.children[0]: one.attributes for one in drawn.children if one.tag == "text"}
    tight, roofline = (named[text] for text in ("model bound 0.0205 ms", "roofline 0.0202 ms"))
    assert max(float(tight["y"]), float(roofline["y"])) < bottom
    places = [(one["x"], one["y"]) for one in (tight, roofline)]
    assert places[0] != places[1]
