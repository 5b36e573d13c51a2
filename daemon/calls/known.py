"""What is known of a model under the process's settings: its price and its window, by ENDPOINT/MODEL."""

from __future__ import annotations

from agent_core.providers import prices, windows
from agent_core.providers.windows import Window
from daemon.config import DaemonConfig
from state.model import Price


def price(config: DaemonConfig, model: str) -> Price | None:
    """Return what a model costs now, None where nobody knows."""
    endpoint, _, name = model.partition("/")
    own = dict(map(prices.parse_override, config.prices))
    return prices.price_of(name, endpoint, base_url=config.endpoint(endpoint).base_url, overrides=own)


def window(config: DaemonConfig, model: str) -> Window:
    """Return how much a model can be asked and can answer."""
    endpoint, _, name = model.partition("/")
    own = dict(map(windows.parse_override, config.windows))
    return windows.window_of(name, endpoint, base_url=config.endpoint(endpoint).base_url, overrides=own)
