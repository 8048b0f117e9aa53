"""A case and the place where it is tried: a folder with canaries, the program, and a verdict that only gets worse."""

import functools
import itertools
import os
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import process
import tree
from judge import Expect, Verdict, judge_end, judge_words
from process import Conditions, Outcome

CANARIES = {"canary.txt": b"not yours\n", "canary.npy": b"\x93NUMPY of somebody else", "canary_folder/file": b"\0" * 64}
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Case:
    """Something to try. act(trial) prepares, runs the program and notes what was wrong."""

    id: str
    act: Callable

    @property
    def family(self) -> str:
        return self.id.split("/")[0]


@dataclass(frozen=True)
class Bench:
    """The program on trial, and the folder in which trials are held."""

    program: Path
    folder: Path
    seed: int = 1
    patience: float = 20.0


class Trial:
    """One trial of one case."""

    def __init__(self, bench: Bench, case_id: str, purpose="trial"):
        self.bench = bench
        self.random = random.Random(f"{bench.seed}/{case_id}")
        self.place = bench.folder / f"{purpose}-{os.getpid()}"
        shutil.rmtree(self.place, ignore_errors=True)
        self.root = self.place / "here"
        self.root.mkdir(parents=True)
        self.verdict, self.why, self.hung = Verdict.OK, "", False
        self.planted, self.guarded, self.commands = {}, {}, []
        self.plant(self.root)

    def note(self, verdict: Verdict, why: str):
        """The worst verdict stands, with its first reason."""
        if verdict > self.verdict:
            self.verdict, self.why = verdict, why

    def plant(self, folder: Path):
        """Files of somebody else; whatever happens, they must be there afterwards."""
        for name, data in CANARIES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self.planted[path] = data

    def guard(self, folder: Path):
        """What the program may read but not change."""
        self.guarded[folder] = tree.digest(folder, ())

    def put(self, files: dict, name: str) -> Path:
        """Writes a folder held in memory."""
        folder = self.root / name
        tree.write(files, folder)
        return folder

    def run(self, *arguments, conditions: Conditions | None = None) -> Outcome:
        """Runs the program, unjudged."""
        conditions = replace(conditions or Conditions(), patience=self.bench.patience)
        command = [str(self.bench.program), *arguments]
        self.commands.append(command)
        outcome = process.run(command, self.root, self.place, conditions)
        self.hung |= outcome.timed_out
        return outcome

    def expect(self, expected: Expect, *arguments, about=(), out: str | None = None, want=None,
               conditions: Conditions | None = None, may_die_of=()) -> Outcome:
        """Runs the program and judges it: want is the digest of the result folder `out` after an undisturbed run, or
        its standard output where the command writes none; None where what is right is not known."""
        before = {} if out is None else tree.digest(self.root / out)
        outcome = self.run(*arguments, conditions=conditions)
        self.judge(outcome, expected, arguments, about, out, want, before, conditions, may_die_of)
        return outcome

    def expect_line(self, parts: tuple, *arguments, out: str | None = None):
        """Runs the program, which must refuse in a line that has these parts, one behind the other."""
        said, at = self.expect(Expect.REFUSED, *arguments, out=out).stderr, 0
        for part in (part.encode("latin1") for part in parts):
            at = said.find(part, at)
            if at < 0:
                self.note(Verdict.WRONG, f"another line: without {part!r}: {said.decode(errors='replace').strip()}")
                return
            at += len(part)

    def judge(self, outcome: Outcome, expected: Expect, arguments: tuple, about=(), out: str | None = None, want=None,
              before=None, conditions: Conditions | None = None, may_die_of=()):
        """The second half of expect()."""
        streams = () if conditions is None else (*conditions.closed, *conditions.streams)
        heard = tuple(stream for stream in (1, 2) if stream not in streams)
        for verdict, why in (judge_end(outcome, arguments[:1] == ("verify",), may_die_of),
                             judge_words(outcome, arguments, about, heard)):
            self.note(verdict, why)
        if self.verdict < Verdict.CRASH:
            folder = None if out is None else self.root / out
            self.judge_results(outcome, expected, folder, want, before or {}, 1 in heard)

    def judge_results(self, outcome: Outcome, expected: Expect, folder, want, before, heard):
        found = {} if folder is None else tree.digest(folder)
        finished = folder is not None and (folder / "summary.json").is_file()
        if outcome.status in (0, 1):
            if expected is Expect.REFUSED:
                self.note(Verdict.WRONG, "accepted")
            if expected is not Expect.EITHER and want is not None:
                if folder is not None and (where := tree.difference(found, want)):
                    self.note(Verdict.WRONG, f"other results: {where}")
                if folder is None and heard and outcome.stdout != want:
                    self.note(Verdict.WRONG, "other words on standard output")
            elif finished and (lack := tree.incomplete(folder)):
                self.note(Verdict.WRONG, f"finished, but {lack}")
        else:
            if expected is Expect.ACCEPTED:
                self.note(Verdict.WRONG, "refused: " + outcome.stderr.decode(errors="replace").strip()[:200])
            # A run that is killed when all but its own account is cleared away has left whole results.
            results = {name: what for name, what in found.items() if not name.startswith(".kvreplay/")}
            if finished and found != before and results != want:
                self.note(Verdict.WRONG, "left as finished, although the run failed")

    def close(self):
        """Checks what must have stayed as it was."""
        for path, data in self.planted.items():
            if not path.is_file() or path.read_bytes() != data:
                self.note(Verdict.WRONG, f"somebody else's file is gone or changed: {path.relative_to(self.place)}")
        for folder, before in self.guarded.items():
            if where := tree.difference(tree.digest(folder, ()), before):
                self.note(Verdict.WRONG, f"input was changed: {folder.name}/{where}")


@functools.lru_cache(maxsize=None)
def undisturbed(bench: Bench, setup: Callable, arguments: tuple, out: str | None):
    """What a run gives that nobody disturbs: the digest of `out`, or standard output. setup(trial) puts there what
    the run reads."""
    return run_undisturbed(bench, setup, arguments, lambda root, said: said if out is None else tree.digest(root / out))


@functools.lru_cache(maxsize=None)
def made_by(bench: Bench, setup: Callable, arguments: tuple, out: str) -> dict:
    """A folder that the program writes, in memory."""
    return run_undisturbed(bench, setup, arguments, lambda root, _: tree.read(root / out))


def run_undisturbed(bench: Bench, setup: Callable, arguments: tuple, read: Callable):
    """Beside the trial in progress, which may be what asks; so may setup."""
    trial = Trial(bench, "undisturbed", f"undisturbed-{next(NUMBERS)}")
    setup(trial)
    outcome = trial.run(*arguments)
    if outcome.status != 0:
        raise RuntimeError(f"undisturbed {arguments} ended with {outcome.status}: {outcome.stderr.decode()}")
    made = read(trial.root, outcome.stdout)
    shutil.rmtree(trial.place)
    return made
