"""Bounds and words that both ends of the protocol know."""

from __future__ import annotations

from typing import Literal

PROTOCOL = 1  # raised when frames, verbs or their fields change

Status = Literal[
    "done", "failed", "deadline", "cancelled", "lease_lost", "queue", "vanished", "full", "broken", "unending"
]
STATUSES = frozenset(
    {
        "done",  # the step ended by itself and answered
        "failed",  # it ended without an answer
        "deadline",  # it took too long and was ended
        "cancelled",  # no home wanted it any more
        "lease_lost",  # no home renewed its lease
        "queue",  # no core became free in time
        "vanished",  # its runner was killed, several times
        "full",  # the disk is
        "broken",  # the runner itself failed
        "unending",  # it was ended, and processes are left
    }
)
# A job that ended so has no result, and is begun anew when it is asked for again.
RETRIED_STATUSES = frozenset({"cancelled", "lease_lost", "queue", "full", "broken"})

HEADER_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20  # of a file, before compression; frames of other jobs pass in between
PAYLOAD_BYTES = CHUNK_BYTES + (64 << 10)
TEXT_CHARS = 64 << 10
LOG_BYTES = 16 << 10
MAX_FILES = 256
ANSWER_BYTES = 4 << 30  # all files that one job leaves
JSON_BYTES = 4 << 20  # the JSON that one job answers
RESERVE_BYTES = 64 << 10  # kept free on the disk for each job, so that its end can be told
SCARCE_BYTES = 1 << 20  # a step that fails with less than this left on the disk failed for want of it
MAX_ATTEMPTS = 3  # of a job whose runner is killed
