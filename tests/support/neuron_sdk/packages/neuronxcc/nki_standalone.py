"""Stands in for the vendor's standalone compiler of SDK 2.29 to 2.31 (see `stand_in_neff`)."""

import enum
import json
from pathlib import Path

from stand_in_neff import make_neff


class NKI_IR_VERSION(enum.Enum):
    beta2 = 2
    beta3 = 3


def compile_nki_ir_kernel_to_neff(
    *,
    kernel_func,
    kernel_inputs_dict,
    kernel_outputs,
    platform_target,
    logical_nc_config,
    output_directory,
    version,
):
    neff = make_neff(
        kernel_func.func, kernel_inputs_dict, target=platform_target, logical=logical_nc_config,
        version=version.name,
    )  # fmt: skip
    neff["outputs"] = [
        [item.name, list(item.shape), neff["stores"] or str(item.dtype)] for item in kernel_outputs
    ]
    if neff["computes"] is None:
        neff["computes"] = "({})".format("".join(f"np.zeros({list(item.shape)})," for item in kernel_outputs))
    (Path(output_directory) / "file.neff").write_text(json.dumps(neff))
