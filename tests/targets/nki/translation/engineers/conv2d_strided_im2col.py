"""conv2d strided im2col."""

import numpy as np

INPUT_SPECS = {"x": ((2, 8, 34, 34), "float32"), "w": ((16, 8, 3, 3), "float32")}
TOLERANCE = 2e-5


def reference(x, w):
    n, c, h, wd = x.shape
    o = (h - 3) // 2 + 1
    cols = np.stack(
        [x[:, :, i : i + 2 * o : 2, j : j + 2 * o : 2][:, :, :o, :o] for i in range(3) for j in range(3)],
        axis=2,
    )
    return np.einsum("nckhw,ock->nohw", cols, w.reshape(16, c, 9))
