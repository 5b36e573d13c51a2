"""API keys of endpoints: where they come from, and how they are kept out of logs and files.

A key comes from an environment variable, from a systemd credential, or from a file that the configuration
names and only its owner can read. A configuration never holds a key itself, because it is logged.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The variable in which systemd passes the folder of a service's credentials."""

MOST_BYTES = 4096
HIDDEN = "[hidden]"

_LIKE_KEYS = re.compile(
    r"""
    (?<=://)[^\s/@"']+(?=@)  # as addresses have a user and a password
    | (?<=[?&;\#])(?:[A-Za-z_-]*(?:key|token|secret|password)=)[^&\s"'#]+  # as queries have keys
    | \b(?:sk|pk|rk|fw|gsk|xai|hf|key)[-_][A-Za-z0-9_\-*.]{8,}  # as vendors begin their keys, also shortened
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}  # as Amazon names keys
    | \bABSK[A-Za-z0-9+/=]{16,}  # as Amazon begins those of Bedrock
    | \bya29\.[\w-]{8,}  # as Google begins tokens
    | (?i:\bsignature=)[0-9a-f]{16,}
    | (?i:\bbearer\s+)[^\s"',;]{4,}
    | (?i:\b(?:x-api-key|api[-_]?key|authorization)\b["']?\s*[:=]\s*["']?(?:bearer\s+)?)[^\s"',;}]{4,}
    """,
    re.VERBOSE,
)


class KeyFault(Exception):  # noqa: N818 - the names of this tree say what happened
    """A configured key is unusable; the message says where it should be and why. `code` is stable."""

    code = "key_unusable"


class Secret:
    """A key that never shows itself in `repr`, `str`, JSON or pickles; call `reveal` to get it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself, for the request that needs it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not pickled")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hide = core_schema.plain_serializer_function_ser_schema(lambda _: HIDDEN)
        return core_schema.is_instance_schema(cls, serialization=hide)


def key_variable(endpoint: str) -> str:
    """Return the name of the environment variable for an endpoint's key, such as `OPENAI_API_KEY`."""
    return f"{endpoint.upper()}_API_KEY"


def credential_name(endpoint: str) -> str:
    """Return the name of the systemd credential for an endpoint's key, such as `openai-api-key`."""
    return f"{endpoint}-api-key"


def find_key(endpoint: str, env: Mapping[str, str], file: Path | None = None) -> Secret | None:
    """Return the endpoint's key, None if none was given.

    The file that the configuration names comes first, then the credential, then the variable.

    Raises:
        KeyFault: a configured key is unusable.
    """
    if file is not None:
        return _read_key_file(file.expanduser(), private=True)
    if folder := env.get(CREDENTIALS):
        path = Path(folder) / credential_name(endpoint)
        if path.exists():
            # systemd has made it readable for the service alone, with its own owner or access list.
            return _read_key_file(path, private=False)
    if text := env.get(key_variable(endpoint), "").strip():
        return _parse_key(text, key_variable(endpoint))
    return None


def describe_key_sources(endpoint: str) -> str:
    """Return a phrase that says where an endpoint's key may come from."""
    return (
        f"the environment variable {key_variable(endpoint)}, the credential {credential_name(endpoint)}, "
        f"or a file named by daemon.{endpoint}.key_file"
    )


def redact(text: str, *secrets: Secret | None) -> str:
    """Return the text without the secrets, and without anything that looks like a key or its header."""
    for secret in secrets:
        if secret is not None and secret.reveal():
            text = text.replace(secret.reveal(), HIDDEN)
    return _LIKE_KEYS.sub(HIDDEN, text)


def _read_key_file(path: Path, *, private: bool) -> Secret:
    try:
        # Do not wait for a pipe. Do not follow a link, which could be redirected after the check.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if private else 0))
    except OSError as error:
        why = "a link, not a file" if error.errno == errno.ELOOP else error.strerror
        raise KeyFault(f"{path}: the key cannot be read: {why}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise KeyFault(f"{path}: a key is read from a regular file only")
        if private:
            _require_private(path, found)
        data = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise KeyFault(f"{path}: larger than {MOST_BYTES} bytes, so it is no key")
    try:
        return _parse_key(data.decode("ascii").strip(), str(path))
    except UnicodeDecodeError:
        raise KeyFault(f"{path}: a key has ASCII letters only") from None


def _require_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise KeyFault(f"{path}: a key's file must be ours; it belongs to user {found.st_uid}")
    if mode := stat.S_IMODE(found.st_mode) & ~0o600:
        raise KeyFault(
            f"{path}: others may use it (mode {stat.S_IMODE(found.st_mode):04o}, {mode:04o} too much): "
            f"chmod 600 {path}"
        )


def _parse_key(text: str, origin: str) -> Secret:
    """Return the text as a key. A key that no header can carry would fail later, and be shown there."""
    if not text:
        raise KeyFault(f"{origin}: holds no key")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise KeyFault(f"{origin}: a key is one word of ASCII letters")
    return Secret(text)
