"""One run of a program: its end, its words, its time and its memory."""

import os
import resource
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

SHOWN = 1 << 20  # bytes of each stream that are read back
NORMAL_FILE = 64 << 20
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")  # no window opens on anybody's
ADDRESS_SPACE = 6 << 30  # what keeps a program gone wild from taking the machine with it


@dataclass
class Outcome:
    """How a run ended: status is the exit status, or minus the signal's number."""

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    peak_bytes: int
    timed_out: bool = False
    signals_sent: tuple = ()


@dataclass
class Conditions:
    """What a run has to live with."""

    limits: dict = field(default_factory=dict)  # resource.RLIMIT_... -> bytes or number
    closed: tuple = ()  # of 0, 1, 2
    errors_by_pipe: bool = False  # where files may have no size, what is said there would be lost
    streams: dict = field(default_factory=dict)  # 1 or 2 -> path that takes its place, or "pipe" for one nobody reads
    meanwhile: Callable | None = None  # called with the process once it runs
    patience: float = 20.0
    environment: dict = field(default_factory=dict)


def lower_own_limits():
    """Inherited by every run: no core files, no file larger than a case needs, no memory without end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for what, most in (resource.RLIMIT_FSIZE, NORMAL_FILE), (resource.RLIMIT_AS, ADDRESS_SPACE):
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def sparse_file(path: Path, size: int):
    """A file of any size that takes no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        with open(path, "ab") as file:
            file.truncate(size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run(command: list, folder: Path, scratch: Path, conditions: Conditions) -> Outcome:
    """Runs command in folder; its streams go to files in scratch, so that no reader is waited for."""
    paths = {1: scratch / "stdout", 2: scratch / "stderr"}
    unread, unwritten = os.pipe() if "pipe" in conditions.streams.values() else (-1, -1)
    if unread >= 0:
        os.close(unread)
    files, ear = {}, -1
    for stream, path in paths.items():
        path.write_bytes(b"")
        instead = conditions.streams.get(stream, path)
        files[stream] = unwritten if instead == "pipe" else os.open(instead, os.O_WRONLY | os.O_APPEND)

    if conditions.errors_by_pipe:
        os.close(files[2])
        ear, files[2] = os.pipe()

    def prepare():
        for what, most in conditions.limits.items():
            resource.setrlimit(what, (most, most))
        for stream in conditions.closed:
            os.close(stream)

    environment = {name: value for name, value in os.environ.items() if name not in SCREENS}
    environment["XDG_STATE_HOME"] = str(scratch)
    special = conditions.limits or conditions.closed
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=files[1], stderr=files[2],
                               env=environment | conditions.environment, start_new_session=True,
                               preexec_fn=prepare if special else None)
    for descriptor in set(files.values()):
        os.close(descriptor)
    sent = tuple(conditions.meanwhile(process) or ()) if conditions.meanwhile else ()
    status, usage, timed_out = wait(process, conditions.patience - (time.monotonic() - begin))
    seconds = time.monotonic() - begin
    read = {stream: path.read_bytes()[:SHOWN] for stream, path in paths.items()}
    if ear >= 0:
        with open(ear, "rb") as heard:
            read[2] = heard.read()
    # A process begins with the peak of the one that it was forked from.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0
    return Outcome(status, read[1], read[2], seconds, peak, timed_out, sent)


def running(process: subprocess.Popen) -> bool:
    """Whether it has not ended yet; its end is left for wait()."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def wait(process: subprocess.Popen, patience: float):
    """The end of a process, which is killed with its children where it takes too long."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        timed_out = not poll.poll(max(patience, 0.0) * 1000)
    finally:
        os.close(descriptor)
    if timed_out:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage, timed_out
