"""Sweeps on the processes of MPI: process 0 hands out the runs, and each process trains its own, one after the other.

Every run is a separate program (`sweep.Worker`), so a crash does not end a process of MPI. Only process 0 answers to
Ctrl-C, and tells the others. All must see the folder of the sweep.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rotrnn.training.parallel import MPIWorld, World
from rotrnn.training.run import Run
from rotrnn.training.sweep import POLL, Place, Worker, here

Outcome = tuple[str, list[str]]
LOST = "lost"
"""The outcome of a run that could write nothing, as on a full disk; with the error in place of warnings."""


class Crew:
    """The other processes of a world, in process 0. At the end of a `with` block they are dismissed.

    They are told (what, folder, more): to "start" the run in a folder, to "stop" it after its step, or to "leave". They
    answer (folder, outcome, warnings) when a run has ended.
    """

    def __init__(self, among: World) -> None:
        self.comm = among.comm if isinstance(among, MPIWorld) else None
        self.beside = _beside(among)
        self.ended: dict[str, Outcome] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            self.tell(rank, "leave")

    @property
    def ranks(self) -> range:
        """The numbers of the other processes."""
        return range(1, 1 if self.comm is None else self.comm.Get_size())

    def places(self, jobs: int, device: str) -> list[Place]:
        """Returns the places for runs, `jobs` in each process, in the order of filling."""
        own = here(jobs * self.beside, device)
        return [own, *(partial(Remote, self, rank, jobs, device) for rank in self.ranks)] * jobs

    def tell(self, rank: int, what: str, *more: Any) -> None:
        assert self.comm is not None
        self.comm.send((what, *more), dest=rank)

    def listen(self) -> None:
        """Takes the answers that have come."""
        while self.comm is not None and self.comm.iprobe():
            folder, how, warned = self.comm.recv()
            self.ended[folder] = how, warned


class Remote:
    """A run that another process trains."""

    def __init__(self, crew: Crew, rank: int, jobs: int, device: str, run: Run) -> None:
        self.crew, self.rank, self.run = crew, rank, run
        self.name = str(run.folder.absolute())
        crew.tell(rank, "start", self.name, jobs, device)

    def has_ended(self) -> bool:
        self.crew.listen()
        return self.name in self.crew.ended

    def ask_to_stop(self) -> None:
        self.crew.tell(self.rank, "stop", self.name)

    def end(self) -> Outcome:
        how, warned = self.crew.ended.pop(self.name)
        if how == LOST:
            raise OSError(f"process {self.rank}: {warned[0]}")
        return how, warned

    def kill(self) -> None:
        """Nothing: a process that is dismissed kills its runs."""


def serve(among: MPIWorld) -> None:
    """Trains the runs that process 0 hands out, until process 0 ends the loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    comm, beside = among.comm, _beside(among)
    working: dict[str, Worker] = {}
    while True:
        while comm.iprobe(source=0):
            what, *more = comm.recv(source=0)
            if what == "leave":
                for worker in working.values():
                    worker.kill()
                return
            folder = more[0]
            if what == "stop" and folder in working:
                working[folder].ask_to_stop()
            elif what == "start":
                _, jobs, device = more
                try:
                    working[folder] = here(jobs * beside, device)(Run(Path(folder)))
                except OSError as error:
                    comm.send((folder, *_told(partial(_failed, Run(Path(folder)), str(error)))), dest=0)
        for folder in [name for name, worker in working.items() if worker.has_ended()]:
            comm.send((folder, *_told(working.pop(folder).end)), dest=0)
        time.sleep(POLL)


def _failed(run: Run, error: str) -> Outcome:
    run.fail(error)
    return "failed", []


def _told(outcome: Callable[[], Outcome]) -> Outcome:
    """Returns the outcome, or that it could not be recorded: process 0 waits for an answer, and raises the error."""
    try:
        return outcome()
    except OSError as error:
        return LOST, [str(error)]


def _beside(among: World) -> int:
    """Returns the number of processes on this machine, which share its cores."""
    machines = among.tell(socket.gethostname())
    return machines.count(machines[among.rank])
