"""What is known of a model under the process's settings: its price and its window, by ENDPOINT/MODEL."""

from __future__ import annotations

from agent_core.providers import prices, windows
from agent_core.providers.windows import ModelWindow
from daemon.config import DaemonConfig
from state.model import Price


def model_price(config: DaemonConfig, model: str) -> Price | None:
    """Return what a model costs now, None where nobody knows."""
    endpoint, _, name = model.partition("/")
    own = dict(map(prices.parse_price_override, config.prices))
    return prices.price_of(name, endpoint, base_url=config.endpoint(endpoint).base_url, overrides=own)


def model_window(config: DaemonConfig, model: str) -> ModelWindow:
    """Return how much a model can be asked and can answer."""
    endpoint, _, name = model.partition("/")
    own = dict(map(windows.parse_window_override, config.windows))
    return windows.window_of(name, endpoint, base_url=config.endpoint(endpoint).base_url, overrides=own)
