"""The jail's entry: `python -m nki_sim.tracer --out-fd N` traces one kernel and ends.

It reads one request from standard input and writes one reply to a file descriptor of its own, because the
kernel may print. It starts without NumPy. Exit status 0 with a program, 1 with an error in the reply.
"""

from __future__ import annotations

import argparse
import os
import sys

from nki_sim import protocol
from nki_sim.errors import LimitError, SimError
from nki_sim.frontend.entry import trace_bytes


def reply(text: str) -> tuple[int, bytes]:
    """Exit status and reply for a request."""
    try:
        return 0, protocol.program_reply(trace_bytes(**protocol.decode_request(text)))
    except SimError as error:
        return 1, protocol.error_reply(error)
    except MemoryError:
        return 1, protocol.error_reply(
            LimitError("limit_memory", "tracing needs more memory than is allowed")
        )


def main(argv: list[str] | None = None) -> int:
    """Answer the request on standard input."""
    parser = argparse.ArgumentParser(prog="python -m nki_sim.tracer", description=__doc__)
    parser.add_argument("--out-fd", type=int, required=True, help="file descriptor for the reply")
    options = parser.parse_args(argv)
    status, data = reply(sys.stdin.read())
    with os.fdopen(options.out_fd, "wb") as out:
        out.write(data)
    return status


if __name__ == "__main__":
    sys.exit(main())
