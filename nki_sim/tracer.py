"""The jail's entry: `python -m nki_sim.tracer --out-fd N` traces one kernel and ends.

It reads one request from standard input. It writes one reply to its own file descriptor, because the kernel
may print. It starts without NumPy. Exit status 0 with a program, 1 with an error in the reply.

With `--batch` it reads one request per line and answers each as soon as it is traced. All kernels of a batch
run in one process, so one kernel could change the results of later ones: use this only for kernels of which
you want nothing but a forecast.
"""

from __future__ import annotations

import argparse
import os
import sys

from nki_sim import protocol
from nki_sim.errors import LimitError, SimError
from nki_sim.frontend.entry import trace_bytes


def answer_request(text: str) -> tuple[int, bytes]:
    """Return the exit status and reply for a request."""
    try:
        return 0, protocol.program_reply(trace_bytes(**protocol.decode_request(text)))
    except SimError as error:
        return 1, protocol.error_reply(error)
    except MemoryError:
        return 1, protocol.error_reply(
            LimitError("limit_memory", "tracing needs more memory than is allowed")
        )


def main(argv: list[str] | None = None) -> int:
    """Answer the requests on standard input; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m nki_sim.tracer", description=__doc__)
    parser.add_argument("--batch", action="store_true", help="answer several requests, one a line")
    parser.add_argument("--out-fd", type=int, required=True, help="file descriptor for the reply")
    options = parser.parse_args(argv)
    text = sys.stdin.read()
    worst = 0
    with os.fdopen(options.out_fd, "wb") as out:
        for request in text.split("\n") if options.batch else [text]:
            status, data = answer_request(request)
            worst = max(worst, status)
            out.write(data)
            out.flush()
    return worst


if __name__ == "__main__":
    sys.exit(main())
