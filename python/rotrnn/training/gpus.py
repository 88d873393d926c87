"""Training on several GPUs: a process for each, started by MPI, whose arrays NCCL gathers and adds up.

Host data goes by MPI, as on the CPU. NCCL's work is done on the current stream, within a recorded step too, and
ends when every process has launched it. So no process waits for the GPU's part of a recorded step before all have told
each other that they launched theirs (`World.tell`): if a process fails before, the others learn of it and do not wait.

Three waits lack this protection: when a step is recorded, for the steps that try it; within a recorded step, for a loop
whose length the host decides; and in steps that run operation by operation. If a process fails there before it launches
its part, only the launcher can end the waiting processes.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np

from rotrnn.devices.cuda import DeviceError
from rotrnn.devices.device import HOST, contiguous, device_of, empty
from rotrnn.nn.layer import Array
from rotrnn.ops.boundary import REAL
from rotrnn.training.parallel import World

ABORT = 2.0
"""Seconds that a process which failed waits for NCCL to end."""


class GPUs(World):
    """The processes of a world, each on its own GPU.

    In the order of processes, those on a machine take its GPUs 0, 1, ..., or as many as they may see. Within a `with`
    block; at its end, the others are no longer waited for. All graphs in which NCCL has a part must be gone by then.

    Raises
    ------
    ValueError
        Two processes would compute on one GPU.
    DeviceError
        CuPy lacks NCCL in some process.
    """

    def __init__(self, among: World) -> None:
        import cupy

        self.among, self.rank, self.size = among, among.rank, among.size
        runtime = cupy.cuda.runtime
        machines = among.tell(socket.gethostname())
        machine = machines[self.rank]
        number = machines[: self.rank].count(machine) % runtime.getDeviceCount()
        places = [tuple(one) for one in among.tell([machine, runtime.deviceGetPCIBusId(number)])]
        for rank, place in enumerate(places):
            if (first := places.index(place)) < rank:
                raise ValueError(
                    f"train: processes {first} and {rank} of {self.size} would share GPU {place[1]} of {place[0]}, "
                    "expected a GPU for each process"
                )
        runtime.setDevice(number)
        self.nccl = _nccl(among)
        (key, *_) = among.tell(list(self.nccl.get_unique_id()) if among.first else None)
        self.comm = self.nccl.NcclCommunicator(self.size, tuple(key), self.rank)

    def __enter__(self) -> GPUs:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.comm.destroy()
        else:
            # Others may never come. NCCL tells its kernels to end, and then waits until no graph is left in which it
            # has a part: the traceback may keep one. The thread keeps `comm`, whose end would wait for the same.
            ending = threading.Thread(target=self.comm.abort, daemon=True)
            ending.start()
            ending.join(ABORT)

    # ---- on the host ----

    def _meet(self, what: int, payload: bytes = b"", *, failed: bool = False) -> list[bytes]:
        return self.among._meet(what, payload, failed=failed)

    def _gather(self, x: Array) -> Array:
        return self.among._gather(x)

    def _exchange(self, x: Array) -> Array:
        return self.among._exchange(x)

    def _copy(self, x: Array) -> None:
        self.among._copy(x)

    def _part(self, group: int) -> World:
        return self.among._part(group)

    def hurry(self) -> None:
        self.among.hurry()

    # ---- on GPUs ----

    def gather(self, x: Array) -> list[Array]:
        """As `World.gather`. Arrays on GPUs must have the same shape in all processes, and nothing waits for them."""
        if device_of(x) is HOST:
            return super().gather(x)
        x, every = contiguous(x), empty((self.size, *x.shape), x.dtype, like=x)
        self.comm.allGather(_at(x), _at(every), x.nbytes, self.nccl.NCCL_UINT8, _stream())
        return [every[rank] for rank in range(self.size)]

    def add(self, x: Array) -> None:
        """As in `World`. An array on a GPU must be C-contiguous, float32 or float64, and nothing waits for it."""
        if device_of(x) is HOST:
            super().add(x)
            return
        self.comm.allReduce(_at(x), _at(x), x.size, self._kind(x), self.nccl.NCCL_SUM, _stream())

    def _sum(self, flat: Array) -> Array:
        if device_of(flat) is HOST:
            return super()._sum(flat)
        self.add(flat)
        return flat

    def _kind(self, x: Array) -> int:
        if x.dtype not in REAL:
            raise TypeError(f"add: x has dtype {x.dtype}, expected float32 or float64, which NCCL adds up")
        return self.nccl.NCCL_FLOAT64 if x.dtype == np.float64 else self.nccl.NCCL_FLOAT32


def _nccl(among: World) -> Any:
    """Returns CuPy's module. DeviceError, in all processes, if one of them lacks NCCL."""
    from cupy.cuda import nccl

    there = among.tell(bool(nccl.available))
    if not all(there):
        raise DeviceError(
            f"several GPUs train together by NCCL, which CuPy does not find in process {there.index(False)}: "
            "pip install nvidia-nccl-cu13"
        )
    return nccl


def _at(x: Array) -> int:
    return x.data.ptr  # type: ignore[attr-defined]


def _stream() -> int:
    import cupy

    return cupy.cuda.get_current_stream().ptr
