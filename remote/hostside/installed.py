"""Which devices this worker knows: module names by kind. The archive that hosts get has this file filled in.

`remote.ssh.worker_archive` writes it from what the targets say (`HostParts` in `targets.base`).
"""

from __future__ import annotations

from typing import Dict

DEVICES: Dict[str, str] = {}
