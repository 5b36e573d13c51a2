"""The secret of an installation: it draws those parts of a judgement that no kernel may predict.

It is stored in the home, readable only by its owner, and created once, so that verdicts repeat within a home.
It goes to the processes that compare outputs, never to a kernel's jail, and into no event.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from remote.errors import InfrastructureError
from state.atomic_files import fsync_path
from state.errors import HomeUnreadable
from state.home_files import read_home_file

SECRET_FILE = "judge.secret"  # noqa: S105  a file name, not a secret

_BYTES = 32


def load_secret(home: Path) -> str:
    """Return the home's secret, in hexadecimal digits; create it on first use.

    Raises:
        InfrastructureError: bad_secret: the file cannot be read or written, or holds something else.
    """
    path = home / SECRET_FILE
    try:
        if not path.exists():
            _create_secret(path)
        text = read_home_file(home, SECRET_FILE, most=4 * _BYTES).decode("ascii").strip()
        if len(bytes.fromhex(text)) == _BYTES:
            return text
    except OSError as error:
        raise InfrastructureError("bad_secret", f"{path}: {error.strerror}", of_machine=True) from error
    except HomeUnreadable as error:
        raise InfrastructureError("bad_secret", str(error), retryable=False) from error
    except ValueError:
        pass
    fault = f"{path} does not hold {2 * _BYTES} hexadecimal digits; delete it, and a new one is made"
    raise InfrastructureError("bad_secret", fault, retryable=False)


def _create_secret(path: Path) -> None:
    """Create the secret. If several processes do so at once, all end up with the first one's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor, for its mode
            file.write(secrets.token_hex(_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        path.hardlink_to(draft)
        fsync_path(path.parent)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
