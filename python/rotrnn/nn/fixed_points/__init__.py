"""Common code of the layers that iterate to a fixed point: the iteration, channel mixers, matrix states."""
