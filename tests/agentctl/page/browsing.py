"""A real browser for a test: what it was told on its console, whom it asked, and what it can measure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

from tests.agentctl.page.serving import PATIENCE_S, Served

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
"""The contrast of all text that shows against what is behind it, by WCAG 2.1's definitions; AA asks for 4.5,
of large text for 3."""

EDGES = """() => {
  const outside = [];
  for (const node of document.querySelectorAll("main *, header *, nav *")) {
    if (!node.checkVisibility() || node.closest(".wide, .code, pre, .unseen, .skip, svg")) continue;
    const box = node.getBoundingClientRect();
    const reaches = box.right > innerWidth + 1 || box.left < -1;
    if (box.width && reaches) outside.push(`${node.tagName}.${node.className}`);
  }
  return outside;
}"""
"""What reaches beyond the window, but for what scrolls by itself."""

PAINTED = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3]) colours.add(data.slice(at, at + 3).join());
  return colours.size;
}"""
"""How many colours a canvas shows."""


@dataclass
class Visit:
    """A page of the browser, and all that it said and asked for."""

    page: Page
    served: Served
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, hash_: str = "") -> Page:
        """Open the page with its token; wait until the run is shown."""
        self.page.goto(f"{self.served.url}{hash_}")
        self.page.wait_for_selector("[role=tabpanel] > *")
        return self.page

    def clean(self) -> None:
        """Nothing was complained of, and nobody else was asked for anything."""
        assert self.said == []
        assert {urlsplit(one).netloc for one in self.asked} == {self.served.host}
        assert not any("token" in urlsplit(one).query for one in self.asked[1:])
        assert "token" not in self.page.url

    def shot(self, name: str) -> None:
        """Keep a picture, where the environment says."""
        folder = os.environ.get("SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def visit(browser: Browser, served: Served, *, width: int = 1280, scheme: Any = "light") -> Visit:
    """Return a fresh page of the browser, which knows nothing of other tests."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    made = Visit(context.new_page(), served)
    made.page.on("console", lambda message: made.said.append(f"{message.type}: {message.text}"))
    made.page.on("pageerror", lambda error: made.said.append(f"error: {error}"))
    made.page.on("request", lambda request: made.asked.append(request.url))
    return made
