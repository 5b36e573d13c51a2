"""Limits and status words that both ends of the protocol share."""

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
        "cancelled",  # no home wants it any more
        "lease_lost",  # no home renewed its lease
        "queue",  # no core became free in time
        "vanished",  # its runner was killed, several times
        "full",  # the disk is full
        "broken",  # the runner itself failed
        "unending",  # it was ended, but some of its processes stay
    }
)
# A job that ended like this has no result, and starts again when it is asked for again.
RETRIED_STATUSES = frozenset({"cancelled", "lease_lost", "queue", "full", "broken"})

HEADER_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20  # of a file, before compression; frames of other jobs pass between pieces
PAYLOAD_BYTES = CHUNK_BYTES + (64 << 10)
TEXT_CHARS = 64 << 10
LOG_BYTES = 16 << 10
MAX_FILES = 256
ANSWER_BYTES = 4 << 30  # of all files of one job's answer
JSON_BYTES = 4 << 20  # of one job's JSON answer
RESERVE_BYTES = 64 << 10  # kept free on the disk for each job, so that its result can be written
SCARCE_BYTES = 1 << 20  # a step that fails with less free disk than this failed because the disk was full
MAX_ATTEMPTS = 3  # for a job whose runner was killed
