"""Training on several processes, started by MPI: what they tell each other.

Each has its own part of every batch; gradients, and what batch norm needs of a batch, are gathered and added in the
order of the processes, so that all hold the same bits, the same in every run. An exchange begins with each process
saying how it is: one that failed is known to all others as soon as they meet, and none waits for it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from rotrnn._support.platform import yield_core
from rotrnn.nn.layer import Array

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE = 0.1
"""Seconds that a process told to end waits for the others: Open MPI kills it after a quarter of one."""

PACKET = 4096
"""Bytes that an exchange begins with; what is longer takes a second round."""

_HEAD = 24
_GATHER, _TOTAL, _TELL, _SHARE, _END = range(5)


class Fallen(RuntimeError):
    """Another process failed; the message says which and why."""


class World:
    """The processes that train together, of which this is number `rank` of `size`. By itself, one that is alone.

    All call the same methods in the same order; what one raises within `together` is raised as `Fallen` in the others.
    A subclass gives the three ways to move arrays, all C-contiguous and everywhere of one dtype and shape.
    """

    rank = 0
    size = 1
    over = False
    """Whether no other process listens any more."""
    pending = False
    """Whether an exchange was begun that has not ended."""

    def _gather(self, x: Array) -> Array:
        """(size, ...): the x of each."""
        return x[None]

    def _exchange(self, x: Array) -> Array:
        """(size, ...): of each the row that it has for this one."""
        return x

    def _copy(self, x: Array) -> None:
        """Overwrites x by that of process 0."""

    def hurry(self) -> None:
        """This process is told to end: it waits for no other much longer."""

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes the run's folder, and speaks."""
        return self.rank == 0

    def gather(self, x: Array) -> list[Array]:
        """The x (n, ...) of each process, in their order; each has its own n, and all one dtype."""
        every = self._meet(_GATHER, x.tobytes())
        return [np.frombuffer(one, x.dtype).reshape(-1, *x.shape[1:]) for one in every]

    def total(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The sum of each array over the processes, in their order and in its dtype, which all share.

        Each process adds up its share of the numbers: none is sent more than twice.
        """
        if self.size == 1 or not arrays:
            return dict(arrays)
        flat = np.concatenate([array.ravel() for array in arrays.values()])
        self._meet(_TOTAL, str(flat.size).encode())
        shares = np.zeros((self.size, -(-flat.size // self.size)), flat.dtype)
        shares.ravel()[: flat.size] = flat
        own, *others = self._exchange(shares)
        for other in others:
            own = own + other
        every, total, at = self._gather(own).ravel(), {}, 0
        for name, array in arrays.items():
            total[name] = every[at : at + array.size].reshape(array.shape)
            at += array.size
        return total

    def tell(self, facts: Any) -> list[Any]:
        """What each process says here, in their order: anything that JSON can hold."""
        if self.size == 1:
            return [facts]
        return [json.loads(one) for one in self._meet(_TELL, json.dumps(facts).encode())]

    def agree(self, what: str, facts: Any) -> None:
        """Raises ValueError, everywhere, unless all processes say the same."""
        first, *others = self.tell(facts)
        for rank, one in enumerate(others, 1):
            if one != first:
                raise ValueError(f"{what} is {one!r} in process {rank}, expected {first!r} as in process 0")

    def share(self, arrays: Mapping[str, Array]) -> None:
        """Overwrites the arrays by those of process 0."""
        self._meet(_SHARE, str(sum(array.size for array in arrays.values())).encode())
        for name in sorted(arrays):
            self._copy(arrays[name])

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is raised in here ends all: the process that raises it tells the others, each of which raises Fallen."""
        try:
            yield
            self._meet(_END)
        except Fallen:
            raise
        except BaseException as error:
            if not (self.over or self.pending):
                with suppress(Fallen):
                    self._meet(_END, f"{type(error).__name__}: {error}".encode(), failed=True)
            raise

    def _meet(self, what: int, payload: bytes = b"", *, failed: bool = False) -> list[bytes]:
        """The payload of each process, all of which are here for the same; Fallen, with its payload, if one failed."""
        if self.size == 1:
            return [payload]
        packet = np.zeros(PACKET, np.uint8)
        packet[:_HEAD].view(np.int64)[:] = failed, what, len(payload)
        packet[_HEAD : _HEAD + len(payload)] = np.frombuffer(payload[: PACKET - _HEAD], np.uint8)
        packets = self._gather(packet)
        failures, asked, sizes = packets[:, :_HEAD].copy().view(np.int64).T.tolist()
        inside = [one[_HEAD : _HEAD + size].tobytes() for one, size in zip(packets, sizes, strict=True)]
        if any(failures):
            self.over = True
            rank = failures.index(1)
            raise Fallen(f"process {rank} of {self.size} failed: {inside[rank].decode(errors='replace')}")
        if len(set(asked)) > 1 or (what in (_TOTAL, _SHARE) and len(set(inside)) > 1):
            raise RuntimeError(f"the processes have come apart: they meet for {asked} of {sizes} bytes")
        if max(sizes) <= PACKET - _HEAD:
            return inside
        whole = np.zeros(max(sizes), np.uint8)
        whole[: len(payload)] = np.frombuffer(payload, np.uint8)
        return [one[:size].tobytes() for one, size in zip(self._gather(whole), sizes, strict=True)]


ALONE = World()


class MPIWorld(World):
    """The processes of an MPI communicator. Waits let Python see signals, and other processes have the core."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self._deadline: float | None = None

    def _gather(self, x: Array) -> Array:
        every = np.empty((self.size, *x.shape), x.dtype)
        self._wait(self.comm.Iallgather(x, every))
        return every

    def _exchange(self, x: Array) -> Array:
        received = np.empty_like(x)
        self._wait(self.comm.Ialltoall(x, received))
        return received

    def _copy(self, x: Array) -> None:
        self._wait(self.comm.Ibcast(x))

    def hurry(self) -> None:
        self._deadline = time.monotonic() + GRACE

    def _wait(self, request: MPI.Request) -> None:
        self.pending = True
        while not request.Test():
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise Fallen(f"told to end, and there was no word of another of the {self.size} processes")
            yield_core()
        self.pending = False


LAUNCHERS = {"PMI_RANK": "PMI_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMIX_RANK": "SLURM_NTASKS"}
"""Variables by which MPICH and its kin, Open MPI, and PMIx under Slurm tell a process its number, and how many."""


def started() -> tuple[int, int]:
    """Number of this process, and how many were started with it by an MPI launcher; (0, 1) by itself."""
    for rank, size in LAUNCHERS.items():
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    return 0, 1


@functools.cache
def world() -> World:
    """The world that this process was started in.

    Raises
    ------
    ImportError
        An MPI launcher started several, and there is no mpi4py, or no MPI.
    ValueError
        mpi4py does not know the others: it speaks another MPI than the launcher.
    """
    _, size = started()
    if size == 1:
        return ALONE
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # MPI cannot end in good order where a process is missing
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"this is one of {size} processes that MPI started, and they need mpi4py to train together: "
            f"pip install 'rotrnn[mpi]' ({error})"
        ) from error
    if MPI.COMM_WORLD.Get_size() != size:
        raise ValueError(
            f"the launcher started {size} processes, and mpi4py sees {MPI.COMM_WORLD.Get_size()}: it speaks "
            f"{MPI.get_vendor()[0]}, expected the launcher (mpirun, mpiexec) that belongs to it"
        )
    found = MPIWorld(MPI.COMM_WORLD.Dup())

    @atexit.register
    def end() -> None:
        if not found.pending:
            MPI.Finalize()

    return found
