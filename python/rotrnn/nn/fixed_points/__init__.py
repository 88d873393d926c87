"""What the layers that iterate to a fixed point share: the iteration, channel mixers, matrix states."""
