"""The differences between operating systems, in this one file. Linux has all features.

macOS: memory is counted in other units, files take no room in advance, and the available memory is unknown.
Windows: the available memory is unknown, too, no fork, no folder can be synced, another kind of lock, and no peak of
memory (0). type checkers read this file for each of them (``make lint``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def available_memory() -> int | None:
    """The memory that this process could take now without pushing anything out, in bytes, within the limits of its
    control groups; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        free = 1024 * int(fields["MemAvailable"].split()[0])
        return max(
            0, min([free, *_left_in_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup").read_text("utf-8"))])
        )
    return None


_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, of version 2 and 1: its limit, its usage, and in memory.stat the memory that the system
would free at once."""


def _left_in_groups(root: Path, groups: str) -> list[int]:
    """The memory left in each limited control group of this process. `groups` are the lines
    "number:controllers:path" of /proc/self/cgroup; the path of version 2 has no controllers."""
    left = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        here = top / path.lstrip("/")
        for group in (here, *here.parents):  # a limit also holds for all that is inside
            left += [one for names in _LIMITS if (one := _left(group, *names)) is not None]
            if group == top:
                break
    return left


def _left(group: Path, limit: str, used: str, idle: str) -> int | None:
    """The memory left in a control group, or None if it has no limit or no such files."""
    try:
        most, now = (group / limit).read_text("utf-8").strip(), int((group / used).read_text("utf-8"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
    except OSError:
        return None
    return None if most == "max" else int(most) - now + int(stat.get(idle, 0))


def cores() -> int:
    """The processor cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "linux":
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=10
            ).stdout.strip()
    return platform.processor() or platform.machine()


def yield_core() -> None:
    """Lets another process have the core."""
    if sys.platform == "win32":
        time.sleep(0)
    else:
        os.sched_yield()


@contextlib.contextmanager
def brief_spins() -> Iterator[None]:
    """Has GNU OpenMP, if it is loaded inside, let a waiting thread spin for microseconds before it sleeps, unless the
    environment says otherwise. Its own default is milliseconds: on a machine that is busy with other work, threads then
    wait for one that has no core, up to a hundred times as long; and NumPy's own threads find the cores taken."""
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "3000"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


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


def regular(path: str, flags: int) -> int:
    """An opener for `open`, for files in folders that may belong to somebody else. OSError for a pipe or a device, and
    for a link to a file to be written, because the change would be elsewhere."""
    flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe waits for its other end
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "is a link, expected a file", path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` has an error of its own for a folder
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is a pipe or a device, expected a file", path)
    return descriptor


def lock(file: IO[bytes], wait: bool) -> None:
    """Holds an open file for this process until it is closed or the process ends; BlockingIOError if another process
    holds it and this process should not wait."""
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
    """Starts to write all unsaved data to disk, and on Linux waits for it."""
    if sys.platform != "win32":
        os.sync()


def allocate(path: Path) -> None:
    """Reserves disk space for a whole file: a write to a mapped file without space ends the process."""
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
