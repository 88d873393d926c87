import numpy as np
import scipy.linalg


def orthogonal(M):
    return scipy.linalg.expm((M - M.swapaxes(-1, -2)).astype(np.float64)).astype(M.dtype)


def orthogonal_backward(dP, M):
    S = (M - M.swapaxes(-1, -2)).astype(np.float64)
    K = np.stack([scipy.linalg.expm_frechet(s.T, d.astype(float), compute_expm=False) for s, d in zip(S, dP)])
    return (K - K.swapaxes(-1, -2)).astype(M.dtype)
