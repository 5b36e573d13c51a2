"""A start of the worker whose clocks a test can set, in place of the archive's own `__main__`.

The file that NKI_TEST_CLOCK names has seconds to add to the calendar and to the monotonic clock. Times that
files are given follow the calendar, as they do on a machine whose clock is wrong.
"""

import os
import sys
import time
from pathlib import Path

_real_time, _real_monotonic, _real_utime = time.time, time.monotonic, os.utime


def _offsets() -> "list[float]":
    try:
        text = Path(os.environ["NKI_TEST_CLOCK"]).read_text(encoding="ascii")
        return [float(word) for word in text.split()]
    except (KeyError, OSError):
        return [0.0, 0.0]


def _utime(path: object, times: object = None, **options: object) -> None:
    if times is None and not options.get("ns"):
        times = (time.time(), time.time())
    _real_utime(path, times, **options)  # type: ignore[call-overload]


time.time = lambda: _real_time() + _offsets()[0]
time.monotonic = lambda: _real_monotonic() + _offsets()[1]
os.utime = _utime  # type: ignore[assignment]

from remote.hostside.__main__ import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
