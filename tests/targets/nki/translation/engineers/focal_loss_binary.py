"""focal loss binary."""

import numpy as np

INPUT_SPECS = {"logits": ((512, 384), "float32"), "labels": ((512, 384), "float32")}
VALUES = {"labels": "zero_one"}
TOLERANCE = 2e-5


def reference(logits, labels):
    p = 1.0 / (1.0 + np.exp(-logits))
    ce = np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    pt = p * labels + (1 - p) * (1 - labels)
    return (0.25 * (1 - pt) ** 2 * ce).mean(axis=1)
