"""What a run may not have: file size, memory, descriptors, standard streams, room on the disk. Where it fails it says
so, and with the limit gone it goes on to the same bytes."""

import ctypes
import functools
import os
import resource
import signal
import subprocess

import samples
from judge import Expect, Verdict
from process import Conditions
from trial import Case, Trial, undisturbed

S, E = Expect.SAME, Expect.EITHER
QUIET = samples.QUIET
RUNS = {command: (samples.command_line(command, "out"), "out") for command in samples.RESULTS}
RUNS |= {
    "analyze": (("analyze", "dump", "--out", "out", "--only", "tokens,channels", "--metrics", "attn,key", *QUIET),
                "out"), "merge": (("merge", "part1", "part2", "--out", "out", *QUIET), "out"),
    "synth": (("synth", "out", *samples.SHAPE, "--quiet"), "out"),
    "compare": (("compare", "a", "b", "--out", "out", "--quiet"), "out"),
    "report": (("report", "a", "--out", "out/page.html", "--quiet"), "out"), "info": (("info", "dump"), None),
    "info-json": (("info", "dump", "--json"), None), "verify": (("verify", "dump", "--tokens", "2", "--threads", "1"),
                                                                None), "compare-words": (("compare", "a", "b"), None),
    "help": (("--help", ), None), "tokens-help": (("tokens", "--help"), None), "refused": (("info", "nothing-here"),
                                                                                           None),
}
RESUMABLE = {*samples.RESULTS, "analyze", "merge"}
FILE_SIZES = (0, 1, 100, 511, 512, 700, 1024, 2000, 4096, 10000, 30000, 100000)
MEMORY = (1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0)
DESCRIPTORS = (3, 4, 5, 6, 7, 8, 9, 10, 12, 16)
STACKS = (256, 512, 1024)
DISKS = (16, 32, 64, 128, 256, 512, 1024, 2048)  # KiB
INODES = (2, 3, 5, 8, 12, 20, 30, 50)
# name -> (closed, what stands in the place of others)
STREAMS = {
    "closed-0": ((0, ), {}), "closed-1": ((1, ), {}), "closed-2": ((2, ), {}), "closed-1-2": ((1, 2), {}),
    "closed-all": ((0, 1, 2), {}), "full-1": ((), {1: "/dev/full"}), "full-2": ((), {2: "/dev/full"}),
    "full-1-2": ((), {1: "/dev/full", 2: "/dev/full"}), "unread-1": ((), {1: "pipe"}),
    "unread-2": ((), {2: "pipe"}), "unread-1-2": ((), {1: "pipe",
                                                       2: "pipe"}), "full-1-closed-2": ((2, ), {1: "/dev/full"})
}


def put_inputs(trial: Trial):
    """Everything that one of the runs reads."""
    samples.put_dump(trial)
    for number in 1, 2:
        trial.put(samples.part(trial.bench, "channels", number), f"part{number}")
    for name in "a", "b":
        trial.put(samples.result(trial.bench, "evict"), name)


def put_all(trial: Trial):
    """And the folder of a page."""
    put_inputs(trial)
    (trial.root / "out").mkdir()


def setup_of(name: str):
    """A page's folder has to be there; one of results is made by the run."""
    return put_all if name == "report" else put_inputs


def under(name: str, conditions: Conditions, expected: Expect, trial, may_die_of=()):
    """A run under conditions, and where it can be resumed once more without them."""
    arguments, out = RUNS[name]
    setup_of(name)(trial)
    want = None if name in ("refused", "verify") else undisturbed(trial.bench, setup_of(name), arguments, out)
    if conditions.limits and starts_not(trial, conditions):
        return  # the loader fails before the program begins
    outcome = trial.expect(expected if name != "refused" else Expect.REFUSED,
                           *arguments,
                           out=out,
                           want=want,
                           conditions=conditions,
                           may_die_of=may_die_of)
    if name in RESUMABLE and outcome.status != 0:
        goes_on(trial, name, want)


def starts_not(trial, conditions: Conditions) -> bool:
    """Whether not even --version runs."""
    if set(conditions.limits) <= {resource.RLIMIT_FSIZE}:
        return False
    return trial.run("--version", conditions=conditions).status != 0


def goes_on(trial, name: str, want):
    """--resume without the conditions gives what the run would have given."""
    arguments, out = RUNS[name]
    trial.expect(Expect.ACCEPTED, *arguments, "--resume", out=out, want=want)


def least_memory(program) -> int:
    """Address space in which --version just runs."""
    low, high = 0, 4 << 30
    while high - low > 1 << 20:
        middle = (low + high) // 2
        ends = subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                              preexec_fn=lambda most=middle: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
        low, high = (low, middle) if ends.returncode == 0 else (middle, high)
    return high


def with_streams(name: str, closed: tuple, streams: dict, trial):
    """Standard streams closed, full or unread. A run that has words for a stream that takes none has failed."""
    speaks = RUNS[name][1] is None
    unheard = speaks and (1 in closed or 1 in streams) and name != "refused"
    conditions = Conditions(closed=closed, streams=streams)
    under(name,
          conditions,
          Expect.REFUSED if unheard else S,
          trial,
          may_die_of=(signal.SIGPIPE, ) if "pipe" in streams.values() else ())


def mount(options: str, folder) -> bool:
    """A file system of its own for a folder, which only this process and its children see; False where not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(mount, "apart"):
        mount.apart = libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None) == 0
    return mount.apart and libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options.encode()) == 0


def on_disk(name: str, small: str, room: str, trial):
    """A disk that fills, and that is larger when the run is resumed."""
    arguments, out = RUNS[name]
    put_inputs(trial)
    # A page names its results by a path from its own folder, so its disk is as deep as the folder of the undisturbed run.
    is_page = name == "report"
    folder, there_out = (trial.root / "out", "out") if is_page else (trial.root / "disk", "disk/out")
    folder.mkdir()
    if not mount(small, folder):
        limit = int(small.rpartition("=")[2].rstrip("k")) * 1024 // 16
        under(name, Conditions(limits={resource.RLIMIT_FSIZE: limit}, errors_by_pipe=True), S, trial)
        return
    try:
        want = undisturbed(trial.bench, setup_of(name), arguments, out)
        there = arguments if is_page else tuple(
            word.replace("out", "disk/out") if word == "out" or word.startswith("out/") else word for word in arguments)
        outcome = trial.expect(S, *there, out=there_out, want=want)
        if outcome.status == 2:
            if ctypes.CDLL(None).mount(b"none", os.fsencode(folder), b"tmpfs", 32, room.encode()) != 0:
                trial.note(Verdict.CRASH, "the harness: no remount")
            if name in RESUMABLE:
                trial.expect(Expect.ACCEPTED, *there, "--resume", out=there_out, want=want)
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(folder), 2)


def cases(bench) -> list:
    """All of the family."""
    made = {}
    least = least_memory(bench.program)
    limits = {f"file-{size}": {resource.RLIMIT_FSIZE: size} for size in FILE_SIZES}
    limits |= {f"memory-{factor}": {resource.RLIMIT_AS: int(least * factor)} for factor in MEMORY}
    limits |= {f"descriptors-{most}": {resource.RLIMIT_NOFILE: most} for most in DESCRIPTORS}
    limits |= {f"stack-{most}": {resource.RLIMIT_STACK: most << 10} for most in STACKS}
    limits |= {
        "data-0": {resource.RLIMIT_DATA: 0}, "data-8M": {resource.RLIMIT_DATA: 8 << 20},
        "locked-0": {resource.RLIMIT_MEMLOCK: 0}, "processes-1": {resource.RLIMIT_NPROC: 1}
    }
    for name in RUNS:
        for key, limit in limits.items():
            conditions = Conditions(limits=limit, errors_by_pipe=resource.RLIMIT_FSIZE in limit)
            made[f"{name}/{key}"] = functools.partial(under, name, conditions, S)
        for key, (closed, instead) in STREAMS.items():
            made[f"{name}/{key}"] = functools.partial(with_streams, name, closed, instead)
        if RUNS[name][1]:
            disks = {f"disk-{size}": (f"size={size}k", "size=64m") for size in DISKS}
            disks |= {f"inodes-{most}": (f"nr_inodes={most}", "nr_inodes=10000") for most in INODES}
            for key, (small, room) in disks.items():
                made[f"{name}/{key}"] = functools.partial(on_disk, name, small, room)
    return [Case(f"limits/{name}", act) for name, act in made.items()]
