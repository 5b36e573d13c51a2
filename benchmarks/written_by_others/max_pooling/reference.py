"""2x2 max pooling of channel-first images."""


def reference(x):
    c, h, w = x.shape
    return x.reshape(c, h // 2, 2, w // 2, 2).max(axis=(2, 4))
