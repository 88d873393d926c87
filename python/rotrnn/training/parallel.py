"""Training on several processes started by MPI: collective communication.

Each process has its own part of every batch. Gradients, and the sums that batch norm needs, are gathered and added in
the order of the processes, so all processes have the same bits, and so does every run. Every collective call first
exchanges the status of each process: if a process has failed, all others learn of it in their next call and do not
wait.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rotrnn._support.platform import yield_core
from rotrnn.nn.layer import Array

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE = 0.1
"""Seconds that a process waits for the others after it was asked to end. Open MPI kills it after 0.25 seconds."""

PACKET = 4096
"""Bytes of the first message of a collective call; longer payloads take a second one."""

_HEAD = 24
_GATHER, _TOTAL, _TELL, _SHARE, _END, _ROW = range(6)


class Fallen(RuntimeError):
    """Another process failed; the message names it and the reason."""


class World:
    """The processes that train together. This process is number `rank` of `size`; the base class is a single process.

    All processes must call the same methods in the same order. If one raises an exception within `together`, the others
    raise `Fallen`. A subclass implements three collective operations on arrays, which are C-contiguous and have equal
    dtypes and shapes in all processes, and a division of the processes into groups.
    """

    rank = 0
    size = 1
    over = False
    """Whether the other processes no longer take part in collective calls."""
    pending = False
    """Whether a collective operation was started and has not ended."""

    def _gather(self, x: Array) -> Array:
        """All-gather: returns (size, ...), the x of each process."""
        return x[None]

    def _exchange(self, x: Array) -> Array:
        """All-to-all: returns (size, ...), the rows that each process has for this one."""
        return x

    def _copy(self, x: Array) -> None:
        """Broadcast: overwrites x with x of process 0."""

    def _part(self, group: int) -> World:
        """Returns the world of the processes that give the same `group`, in their order."""
        return self

    def hurry(self) -> None:
        """Called when this process is asked to end: from then on it waits for others only for `GRACE` seconds."""

    @property
    def first(self) -> bool:
        """Whether this is process 0, which reads and writes the run's folder and prints messages."""
        return self.rank == 0

    def gather(self, x: Array) -> list[Array]:
        """All-gather: returns the x (n, ...) of each process, in their order. n may differ between processes; the dtype
        may not."""
        if 0 in x.shape[1:]:  # no bytes, which do not tell n
            return [np.empty((int(n), *x.shape[1:]), x.dtype) for n in self._meet(_GATHER, str(len(x)).encode())]
        every = self._meet(_GATHER, x.tobytes())
        return [np.frombuffer(one, x.dtype).reshape(-1, *x.shape[1:]) for one in every]

    def total(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """All-reduce: returns the sum of each array over the processes, added in their order and in the arrays' dtype,
        which all arrays share.

        Each process adds up its share of the elements, so no element is sent more than twice.
        """
        if self.size == 1 or not arrays:
            return dict(arrays)
        flat = np.concatenate([array.ravel() for array in arrays.values()])
        self._meet(_TOTAL, str(flat.size).encode())
        every, total, at = self._sum(flat), {}, 0
        for name, array in arrays.items():
            total[name] = every[at : at + array.size].reshape(array.shape)
            at += array.size
        return total

    def add(self, x: Array) -> None:
        """Replaces an array by its sum over the processes, as `total` does."""
        x[...] = self.total({"": x})[""]

    def _sum(self, flat: Array) -> Array:
        """Returns the sum of a vector over the processes; what follows in it is undefined."""
        shares = np.zeros((self.size, -(-flat.size // self.size)), flat.dtype)
        shares.ravel()[: flat.size] = flat
        own, *others = self._exchange(shares)
        for other in others:
            own = own + other
        return self._gather(own).ravel()

    def tell(self, facts: Any) -> list[Any]:
        """All-gather of JSON values: returns the `facts` of each process, in their order."""
        if self.size == 1:
            return [facts]
        return [json.loads(one) for one in self._meet(_TELL, json.dumps(facts).encode())]

    def agree(self, what: str, facts: Any) -> None:
        """Raises ValueError in all processes unless `facts` is the same in all of them."""
        first, *others = self.tell(facts)
        for rank, one in enumerate(others, 1):
            if one != first:
                raise ValueError(f"{what} is {one!r} in process {rank}, expected {first!r} as in process 0")

    def grid(self, time: int) -> Grid:
        """Returns these processes as a grid whose rows of `time` neighbours share sequences.

        ValueError, in all processes, if they differ in `time` or it does not divide their number.
        """
        time = int(time) if isinstance(time, np.integer) else time
        self.agree("grid: time", time)  # first, so that all raise if one does
        if isinstance(time, bool) or not isinstance(time, int) or time < 1 or self.size % time:
            raise ValueError(f"grid: time={time!r}, expected a divisor of the number of processes, {self.size}")
        return Grid(self, Row(self, self._part(self.rank // time)))

    def share(self, arrays: Mapping[str, Array]) -> None:
        """Broadcast: overwrites the arrays with the arrays of process 0."""
        self._meet(_SHARE, str(sum(array.size for array in arrays.values())).encode())
        for name in sorted(arrays):
            self._copy(arrays[name])

    @contextmanager
    def together(self) -> Iterator[None]:
        """An exception within this block ends all processes: it is reported to the others, which raise `Fallen`."""
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
        """Returns the payload of each process; all must make the same call. Raises `Fallen` if a process has failed."""
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
            raise RuntimeError(f"the processes are out of step: they make the calls {asked} with {sizes} bytes")
        if max(sizes) <= PACKET - _HEAD:
            return inside
        whole = np.zeros(max(sizes), np.uint8)
        whole[: len(payload)] = np.frombuffer(payload, np.uint8)
        return [one[:size].tobytes() for one, size in zip(self._gather(whole), sizes, strict=True)]


ALONE = World()


class Row:
    """The processes that share sequences, in the order of their pieces (`rotrnn.ops.Ranks`).

    Each of their calls first exchanges the status of all processes, also in other rows: if a process failed, all learn
    of it.
    """

    def __init__(self, everyone: World, own: World) -> None:
        self._everyone, self._own, self.rank, self.size = everyone, own, own.rank, own.size

    def gather(self, x: Array) -> list[Array]:
        """As in `World`, for the processes in this row."""
        self._everyone._meet(_ROW)
        return self._own.gather(x)


@dataclass(frozen=True)
class Grid:
    """Processes as a grid: each row has a share of the batch, and in a row each has a piece of time.

    It is a `gather` for `rotrnn.nn.Context`, which splits sequences: see docs/processes.md. In evaluation mode, too,
    all processes must make the same calls.
    """

    everyone: World
    time: Row

    @property
    def rows(self) -> int:
        """The number of shares of the batch."""
        return self.everyone.size // self.time.size

    @property
    def row(self) -> int:
        """The index of this process's share of the batch."""
        return self.everyone.rank // self.time.size

    def __call__(self, x: Array) -> list[Array]:
        """All-gather over all processes."""
        return self.everyone.gather(x)


class MPIWorld(World):
    """The processes of an MPI communicator. While it waits, Python handles signals and other processes can run."""

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

    def _part(self, group: int) -> World:
        return MPIWorld(self.comm.Split(group, self.rank))

    def hurry(self) -> None:
        self._deadline = time.monotonic() + GRACE

    def _wait(self, request: MPI.Request) -> None:
        self.pending = True
        while not request.Test():
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise Fallen(f"asked to end, and another of the {self.size} processes did not answer")
            yield_core()
        self.pending = False


LAUNCHERS = {"PMI_RANK": "PMI_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMIX_RANK": "SLURM_NTASKS"}
"""Environment variables with the rank of a process and the number of processes: of MPICH and its derivatives, of Open
MPI, and of PMIx under Slurm."""


def started() -> tuple[int, int]:
    """Returns the rank of this process and the number of processes that an MPI launcher started; (0, 1) without one."""
    for rank, size in LAUNCHERS.items():
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    return 0, 1


@functools.cache
def world() -> World:
    """Returns the world that this process belongs to.

    Raises
    ------
    ImportError
        An MPI launcher started several processes, but mpi4py or MPI is missing.
    ValueError
        mpi4py does not see the other processes, because it uses another MPI than the launcher.
    """
    _, size = started()
    if size == 1:
        return ALONE
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # MPI_Finalize would wait for a process that is gone
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"this is one of {size} processes started by MPI, which need mpi4py to train together: "
            f"pip install 'rotrnn[mpi]' ({error})"
        ) from error
    if MPI.COMM_WORLD.Get_size() != size:
        raise ValueError(
            f"the launcher started {size} processes, but mpi4py sees {MPI.COMM_WORLD.Get_size()}: it uses "
            f"{MPI.get_vendor()[0]}, expected the launcher (mpirun, mpiexec) of the same MPI"
        )
    found = MPIWorld(MPI.COMM_WORLD.Dup())

    @atexit.register
    def end() -> None:
        if not found.pending:
            MPI.Finalize()

    return found
