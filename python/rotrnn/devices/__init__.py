"""Where arrays are and what computes on them: the host, GPUs, and what a recorded piece of work must know.

A device is made once by `rotrnn.devices.device.register`; the GPU is made when an array on it is first met.
"""

from rotrnn.devices import cuda as cuda  # which says how GPUs are found
