"""Which addresses may be asked: everybody's in earnest, in tests only this machine's own.

Tests set the variable below for themselves and for the processes that they start. Where it is set, a provider
refuses every other address before anything is sent, with an error that no retry settles.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_ONLY = "NKI_KERNEL_AGENT_LOOPBACK_ONLY"
"""Where this variable is set to anything, no model beyond this machine is asked."""


class RealRequestForbidden(RuntimeError):  # noqa: N818 - the names of this tree say what happened
    """A real model would have been asked where that is forbidden."""


def is_loopback(url: str) -> bool:
    """Return whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def public_address(url: str) -> str:
    """Return where an address leads, for people: nothing of it that may be a secret, such as a password."""
    parts = urlsplit(url)
    host = parts.hostname or "?"
    try:
        port = parts.port
    except ValueError:  # no number, so no place either
        port = None
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" if port is None else f"{parts.scheme}://{named}:{port}"


def require_allowed(url: str) -> None:
    """Refuse an address that must not be asked here.

    Raises:
        RealRequestForbidden: only this machine may be asked, and the address is another's.
    """
    if os.environ.get(LOOPBACK_ONLY) and not is_loopback(url):
        raise RealRequestForbidden(
            f"{urlsplit(url).hostname} would have been asked, and {LOOPBACK_ONLY} forbids real requests"
        )
