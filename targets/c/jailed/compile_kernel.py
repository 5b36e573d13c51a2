"""Compiles one kernel in the jail: a request as JSON on stdin, one line of JSON and the library as the
answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_MESSAGE_BYTES = 8 << 10


def main() -> int:
    """Compile `source` with `header` before it by `command`; the library's bytes follow the first line."""
    request = json.loads(sys.stdin.buffer.read())
    folder = Path(os.environ["TMPDIR"])
    source, header, library = folder / request["name"], folder / "problem.h", folder / "kernel.so"
    source.write_text(request["source"])
    header.write_text(request["header"])
    command = [*request["command"], "-include", str(header), "-o", str(library), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, cwd=folder)
    messages = done.stderr.replace(f"{folder}/", "")[:_MESSAGE_BYTES]
    data = library.read_bytes() if done.returncode == 0 and library.exists() else b""
    with os.fdopen(int(sys.argv[-1]), "wb") as answer:
        answer.write(json.dumps({"status": done.returncode, "messages": messages}).encode() + b"\n" + data)
    return 0
