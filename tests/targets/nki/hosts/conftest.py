"""Fixtures of hosts over SSH, for what NKI has on them."""

from tests.remote.conftest import bench, evaluator, make_evaluator, processes, running, shared_home, silu  # noqa: F401
from tests.remote.ssh.conftest import jobs, judge, sshd  # noqa: F401
