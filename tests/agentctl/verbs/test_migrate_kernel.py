"""`agentctl migrate KERNEL`: a kernel of the legacy namespace comes out in the current one, and is judged."""

from __future__ import annotations

from daemon import exits

LEGACY = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def silu(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128:(i + 1) * 128, :])
        nl.store(out[i * 128:(i + 1) * 128, :], value=nl.multiply(tile, nl.sigmoid(tile)))
    return out
"""
SILU = ("--problem", "silu", "--size", "reduced")


def test_a_legacy_kernel_comes_out_in_the_current_namespace_and_is_correct(ctl, home, tmp_path):
    path, goal = tmp_path / "old.py", tmp_path / "new.py"
    path.write_text(LEGACY)
    called = ctl("migrate", path, *SILU, "-o", goal, "--json")
    assert called.status == exits.OK
    assert (called.json["verdict"], called.json["same_program"]) == ("correct", True)
    assert "neuronxcc" not in goal.read_text()
    assert goal.read_text() == called.json["source"]
    assert not (home / "events.db").exists()


def test_a_kernel_that_has_no_canonical_form_stays_as_it_is(ctl, tmp_path):
    path = tmp_path / "old.py"
    path.write_text(LEGACY.replace("def silu(x):", "def silu(*, x):"))
    called = ctl("migrate", path, *SILU)
    assert called.status == exits.FAILURE
    assert f"{path} stays as it is: " in called.out
