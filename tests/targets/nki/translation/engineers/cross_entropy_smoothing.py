"""Label-smoothed cross-entropy with one-hot labels, mean over rows as a number."""

import numpy as np

INPUT_SPECS = {
    "logits": ((1024, 256), "float32"),
    "onehot": ((1024, 256), "float32"),
}
TOLERANCE = 2e-5


def reference(logits, onehot):
    n = logits.shape[1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = onehot * 0.9 + 0.1 / n
    return -(target * logp).sum(axis=1).mean()
