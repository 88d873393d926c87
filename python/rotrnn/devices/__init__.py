"""Devices of arrays and their kernels: the host, GPUs, and rules for recorded work.

A device is made once by `rotrnn.devices.device.register`; the GPU is made when an array on it is first met.
"""

from rotrnn.devices import cuda as cuda  # which says how GPUs are found
