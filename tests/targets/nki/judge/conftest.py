"""Fixtures of evaluators on this machine, for the program side of the judge."""

from tests.remote.conftest import bench, evaluator, make_evaluator, processes, running, shared_home, silu  # noqa: F401
