"""Runs that are ended at a random moment, and go on to the same bytes; inputs and results that change while a run
reads or writes them; two runs at once."""

import functools
import os
import shutil
import signal
import subprocess
import threading
import time

import samples
import tree
from judge import Expect, Verdict
from limits import RESUMABLE, RUNS, put_inputs, setup_of
from process import Conditions
from trial import Case, Trial, undisturbed

SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "hang-up": signal.SIGHUP}
WHOLE = ("analyze", "dump", "--out", "out", "--only", "tokens,evict", "--metrics", "attn,key,exact_remove",
         *samples.QUIET)
LAST_LOOK = 0.04  # seconds before its end


@functools.lru_cache(maxsize=None)
def duration(bench, arguments: tuple, setup) -> float:
    """Seconds that an undisturbed run takes."""
    trial = Trial(bench, "duration", "duration")
    setup(trial)
    return trial.run(*arguments).seconds


def strike(number: int, delay: float):
    """Sends a signal after a while."""
    def meanwhile(process: subprocess.Popen):
        time.sleep(delay)
        os.kill(process.pid, number)  # where it has ended already, nobody is hurt: it is not reaped yet
        return (number,)
    return meanwhile


def killed(name: str, number: int, trial):
    """Once or more often, then finished: as if nothing had been."""
    arguments, out = RUNS[name]
    setup_of(name)(trial)
    want = undisturbed(trial.bench, setup_of(name), arguments, out)
    again = ("--resume",) if name in RESUMABLE else ("--force",) if name == "compare" else ()
    times = trial.random.choice((1, 1, 2, 3)) if again else 1
    for i in range(times):
        delay = trial.random.random() * duration(trial.bench, arguments, setup_of(name))
        conditions = Conditions(meanwhile=strike(number, delay))
        trial.expect(Expect.SAME, *arguments, *(again if i else ()), out=out, want=want, conditions=conditions)
    if name == "synth":
        half_dump(trial, want)
    else:
        trial.expect(Expect.ACCEPTED, *arguments, *again, out=out, want=want)


def half_dump(trial, want):
    """What synth left is whole, or nothing takes it for a dump."""
    whole = not tree.difference(tree.digest(trial.root / "out"), want)
    if not whole:
        trial.expect(Expect.REFUSED, "tokens", "out", "--out", "result", *samples.QUIET)


def after_a_while(trial, arguments: tuple, change):
    """Conditions in which an input changes at a random moment of a run."""
    delay = trial.random.random() * duration(trial.bench, arguments, put_inputs)

    def meanwhile(_):
        time.sleep(delay)
        change(trial, trial.root / "dump")

    return Conditions(meanwhile=meanwhile)


def while_verifying(change, trial):
    """An input changes while it is checked: whatever is found, the check ends, and soon."""
    put_inputs(trial)
    arguments, _ = RUNS["verify"]
    trial.expect(Expect.EITHER, *arguments, about=("dump", "layer"), conditions=after_a_while(trial, arguments, change))


def while_running(change, trial):
    """An input changes after a random while. The results are those of before or of after, or there is one line."""
    put_inputs(trial)

    def put_changed(other):
        put_inputs(other)
        change(other, other.root / "dump")

    before = undisturbed(trial.bench, put_inputs, WHOLE, "out")
    outcome = trial.expect(Expect.EITHER,
                           *WHOLE,
                           out="out",
                           conditions=after_a_while(trial, WHOLE, change),
                           about=("dump", "layer"))
    if outcome.status != 0:
        return
    found = tree.digest(trial.root / "out")
    if tree.difference(found, before) and found != result_of(trial, put_changed):
        trial.note(Verdict.WRONG, f"neither the results of before nor of after: {tree.difference(found, before)}")


def result_of(trial, setup):
    """What the run gives on changed inputs; None where they are refused."""
    try:
        return undisturbed(trial.bench, setup, WHOLE, "out")
    except RuntimeError:
        return None


def shrink(array: str, to: float):
    """An array is cut short in its place."""
    def change(trial, folder):
        path = folder / array
        if path.exists():
            os.truncate(path, int(path.stat().st_size * to))
    return change


def rewrite(array: str):
    """An array gets other numbers, in its place."""
    def change(trial, folder):
        data = samples.dump(trial.bench, "2")[array]
        with open(folder / array, "r+b") as file:
            file.write(data)
    return change


def replace(trial, folder):
    """All of another dump, file by file, by renaming."""
    for name, data in samples.dump(trial.bench, "2").items():
        (folder / "new").write_bytes(data)
        (folder / "new").rename(folder / name)


def remove(trial, folder):
    """The dump is gone."""
    shutil.rmtree(folder)


def output_changes(kind: str, trial):
    """Somebody touches the results while they are written: exit 0 means that they are whole."""
    put_inputs(trial)
    want = undisturbed(trial.bench, put_inputs, WHOLE, "out")
    delay = trial.random.random() * duration(trial.bench, WHOLE, put_inputs)
    changed = []

    def meanwhile(process):
        time.sleep(delay)
        out = trial.root / "out"
        files = [out / name for name in sorted(tree.names(out)) if name.endswith(".npy")]
        if kind == "layer":
            shutil.rmtree(out / "layer_00", ignore_errors=True)
        elif kind == "all":
            shutil.rmtree(out, ignore_errors=True)
        elif kind == "work":
            shutil.rmtree(out / ".kvreplay", ignore_errors=True)
        elif files and kind == "file":
            trial.random.choice(files).unlink(missing_ok=True)
        elif files and kind == "link":
            path = trial.random.choice(files)
            path.unlink(missing_ok=True)
            path.symlink_to(trial.root / "canary.npy")
        changed.append(time.monotonic())

    outcome = trial.run(*WHOLE, conditions=Conditions(meanwhile=meanwhile))
    # What changes once the run has had its last look nobody can see.
    seen = time.monotonic() - changed[0] > LAST_LOOK
    trial.judge(outcome,
                Expect.SAME if seen else Expect.EITHER,
                WHOLE,
                out="out" if seen else None,
                want=want,
                about=("out",))


def two_at_once(first: tuple, second: tuple, trial):
    """Two runs into one folder: whoever ends with 0 has left the whole results there."""
    put_inputs(trial)
    delay = trial.random.random() * duration(trial.bench, WHOLE, put_inputs)
    ends = []

    def other():
        time.sleep(delay)
        command = [str(trial.bench.program), *WHOLE, *second]
        ends.append(
            subprocess.run(command, cwd=trial.root, capture_output=True, timeout=trial.bench.patience, check=False))

    thread = threading.Thread(target=other)
    thread.start()
    want = undisturbed(trial.bench, put_inputs, WHOLE, "out")
    outcome = trial.run(*WHOLE, *first)
    thread.join()
    statuses = [outcome.status, *(end.returncode for end in ends)]
    if not ends or any(status not in (0, 2) for status in statuses):
        trial.note(Verdict.CRASH, f"two at once: {statuses}")
    elif 0 in statuses and (where := tree.difference(tree.digest(trial.root / "out"), want)):
        trial.note(Verdict.WRONG, f"two at once: {statuses}, {where}")
    if statuses == [2, 2]:
        trial.expect(Expect.ACCEPTED, *WHOLE, "--resume", out="out", want=want)


def cases(bench) -> list:
    """All of the family."""
    made = {}
    for name, (_, out) in RUNS.items():
        for key, number in SIGNALS.items() if out else ():
            for i in range(10):
                made[f"{name}/{key}-{i}"] = functools.partial(killed, name, number)
    changes = {
        f"shrink-{array[:10]}-{to}": shrink(array, to)
        for array in ("layer_00/q.npy", "layer_01/k.npy")
        for to in (0, 0.5, 0.99)
    }
    changes |= {
        "rewrite-0": rewrite("layer_00/k.npy"), "rewrite-1": rewrite("layer_01/v.npy"), "replace": replace,
        "remove": remove
    }
    for key, change in changes.items():
        for i in range(15):
            made[f"input/{key}-{i}"] = functools.partial(while_running, change)
            if key.startswith("shrink"):
                made[f"verify/{key}-{i}"] = functools.partial(while_verifying, change)
    for kind in ("layer", "all", "work", "file", "link"):
        for i in range(15):
            made[f"output/{kind}-{i}"] = functools.partial(output_changes, kind)
    for i, pair in enumerate((((), ()), ((), ("--resume",)), (("--force",), ("--force",)), ((), ("--force",)))):
        for j in range(8):
            made[f"together/{i}-{j}"] = functools.partial(two_at_once, *pair)
    return [Case(f"kills/{name}", act) for name, act in made.items()]
