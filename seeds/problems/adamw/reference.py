"""The truth of `adamw`, in float64: one step, the first of a run, with decoupled weight decay."""

import numpy as np

LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-3
BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-8


def reference(theta, g, m, v):
    theta, g, m, v = (array.astype(np.float64) for array in (theta, g, m, v))
    mean = BETA_1 * m + (1 - BETA_1) * g
    square = BETA_2 * v + (1 - BETA_2) * np.square(g)
    # After one step the mean of squares is corrected by 1 - BETA_2; the mean of gradients is taken as it is.
    root = np.sqrt(square / (1 - BETA_2))
    decayed = theta - LEARNING_RATE * WEIGHT_DECAY * theta
    return (decayed - LEARNING_RATE * mean / (root + EPSILON)).astype(np.float32)
