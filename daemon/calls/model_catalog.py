"""The price and the window of a model (ENDPOINT/MODEL) under the process's settings."""

from __future__ import annotations

from agent_core.providers import prices, windows
from agent_core.providers.windows import ModelWindow
from daemon.config import DaemonConfig
from state.model import Price


def model_price(config: DaemonConfig, model: str) -> Price | None:
    """Return the current price of a model, None if it is unknown."""
    endpoint, _, name = model.partition("/")
    own = dict(map(prices.parse_price_override, config.prices))
    return prices.price_of(name, endpoint, settings=config.endpoint(endpoint).settings(), overrides=own)


def model_window(config: DaemonConfig, model: str) -> ModelWindow:
    """Return the context and output limits of a model."""
    endpoint, _, name = model.partition("/")
    own = dict(map(windows.parse_window_override, config.windows))
    return windows.window_of(name, endpoint, settings=config.endpoint(endpoint).settings(), overrides=own)
