"""What differs between operating systems, in this one file. Linux has all of it.

macOS: memory is counted in other units, and files take no room in advance. Windows: no fork, no folder can be synced,
another kind of lock, and no peak of memory (0). type checkers read this file for each of them (``make lint``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource


def peak_memory() -> int:
    """The most memory that this process has held, in bytes; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    else:  # not after the return: mypy would read it for Windows too
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def cores() -> int:
    """The processor cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "linux":
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return platform.processor() or platform.machine()


def yield_core() -> None:
    """Lets another process have the core."""
    if sys.platform == "win32":
        time.sleep(0)
    else:
        os.sched_yield()


def after_fork_in_child(work: Callable[[], object]) -> None:
    """From now on each forked child calls `work` first."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=work)


def interrupt() -> None:
    """Interrupts this process as Ctrl-C does; from any thread."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def killed(code: int) -> bool:
    """Whether a process that returned `code` was killed outright, as a system does when memory runs out."""
    return sys.platform != "win32" and code == -signal.SIGKILL


def lock(file: IO[str], wait: bool) -> None:
    """Holds an open file for this process until it is closed or the process ends; BlockingIOError where another does
    and this one is not to wait."""
    if sys.platform == "win32":
        while True:
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if not wait:
                    raise BlockingIOError(*error.args) from error
                time.sleep(0.1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def synced(path: str | os.PathLike[str]) -> None:
    """Waits until a file, or the names in a folder, are on disk. (Windows syncs no folder, and no file that is open
    for reading.)"""
    if sys.platform == "win32" and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all() -> None:
    """Starts to write all that is not on disk yet, and on Linux waits for it."""
    if sys.platform != "win32":
        os.sync()


def allocate(path: Path) -> None:
    """Has the disk keep room for all of a file: a write to what is mapped that finds none ends the process."""
    if sys.platform != "linux":
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that know no such thing
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
