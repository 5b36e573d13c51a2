"""Bounds and words that both ends of the protocol know."""

from __future__ import annotations

from typing import Literal

PROTOCOL = 1  # raised when frames, verbs or their fields change

Status = Literal["done", "failed", "deadline", "cancelled", "lease_lost", "queue", "vanished", "unending"]
STATUSES = frozenset(
    {"done", "failed", "deadline", "cancelled", "lease_lost", "queue", "vanished", "unending"}
)
AGAIN = frozenset({"cancelled", "lease_lost", "queue"})  # a job that ended so is begun anew when asked for

HEADER_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20  # of a file, before compression; frames of other jobs pass in between
PAYLOAD_BYTES = CHUNK_BYTES + (64 << 10)
TEXT_CHARS = 64 << 10
LOG_BYTES = 16 << 10
FILES = 256
ANSWER_BYTES = 4 << 30  # all files that one job leaves
JSON_BYTES = 4 << 20  # the JSON that one job answers
RESERVE_BYTES = 64 << 10  # kept free on the disk for each job, so that its end can be told
ATTEMPTS = 3
