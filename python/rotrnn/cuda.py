"""rotrnn on a GPU: CuPy's arrays as a device of every op, layer and model.

>>> import cupy, rotrnn                                    # doctest: +SKIP
>>> h = rotrnn.ops.diagonal_scan(cupy.asarray(a), cupy.asarray(x))   # doctest: +SKIP

Ops run where their arrays are. Arrays of other libraries on a GPU (PyTorch, JAX, anything with ``__dlpack__`` or
``__cuda_array_interface__``) are read without a copy; results are CuPy arrays, which these libraries read in the same
way. Kernels run on CuPy's current stream and do not wait for it.

Nothing here is imported before it is needed: the package works without CuPy, without a driver and without a GPU.
"""

from rotrnn.devices.cuda import DeviceError, about, available, describe, device, why_not

__all__ = ["DeviceError", "about", "available", "describe", "device", "why_not"]
