"""The error by which the worker refuses a request: a code that home knows and a sentence."""

from __future__ import annotations


class RequestRefused(Exception):  # noqa: N818  a verdict on a request rather than a fault
    """A request that cannot be met.

    Codes: protocol, bad_request, bad_content, lacks, unknown_job, full, failed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
