import numpy as np


def mask_padding(x, lengths):
    if lengths is None:
        return x
    return np.where((np.arange(x.shape[1]) < lengths[:, None])[..., None], x, 0)
