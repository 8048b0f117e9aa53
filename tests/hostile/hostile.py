"""Tries hostile cases on the command line program and says how each one ends. See README.md."""

import argparse
import importlib
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import mended
import process
from judge import Verdict
from trial import Bench, Trial

FAMILIES = ("arrays", "archives", "manifests", "results", "options", "limits", "kills", "view")
COSTS = {"view": 10}  # of a case, where it is not that of most: drawing takes a while
WORK = {}  # bench, cases, keep: inherited by the processes that try


def attempt(number: int) -> tuple:
    """Tries one case: (number, verdict, why, commands). What hangs is tried again: the machine may have been busy."""
    bench, case, keep = WORK["bench"], WORK["cases"][number], WORK["keep"]
    trial = tried(bench, case)
    if trial.hung:
        trial = tried(bench, case)
    if keep and trial.verdict > Verdict.OK:
        kept = Path(keep) / re.sub(r"[^\w.-]+", "_", case.id)[:120]
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(trial.place, kept, symlinks=True, ignore=not_copyable)
    return number, trial.verdict, trial.why, trial.commands


def tried(bench: Bench, case) -> Trial:
    """The trial after its end."""
    trial = Trial(bench, case.id)
    try:
        case.act(trial)
        trial.close()
    except Exception:  # of the harness: the other cases go on, and this one fails visibly
        trial.note(Verdict.CRASH, "the harness: " + traceback.format_exc().strip().replace("\n", " | ")[-400:])
    return trial


def not_copyable(folder: str, names: list) -> list:
    """What cannot be read to its end."""
    paths = {name: Path(folder) / name for name in names}
    return [name for name, path in paths.items()
            if not path.is_symlink() and not path.is_dir() and (not path.is_file() or path.stat().st_size > 1 << 27)]


def chosen(cases: list, number: int | None, seed: int) -> list:
    """What was mended, and a part of every family, as large as its share of the root of its size: small families count
    for more, and slow ones for less."""
    if number is None or number >= len(cases):
        return cases
    always = [case for case in cases if case.id in mended.CASES]
    cases = [case for case in cases if case.id not in mended.CASES]
    number = max(number - len(always), 0)
    sizes = Counter(case.family for case in cases)
    roots = {family: size**0.5 / COSTS.get(family, 1) for family, size in sizes.items()}
    draw = random.Random(seed)
    picked = always
    for family, root in roots.items():
        of_family = [case for case in cases if case.family == family]
        picked += draw.sample(of_family, min(len(of_family), max(1, round(number * root / sum(roots.values())))))
    return picked


def all_cases(bench: Bench, families) -> list:
    """The cases of these families; their names are their own."""
    cases = [case for family in families for case in importlib.import_module(family).cases(bench)]
    twice = [case_id for case_id, count in Counter(case.id for case in cases).items() if count > 1]
    assert not twice, f"case ids are not unique: {twice[:3]}"
    there, tried = {case.id for case in cases}, {case.family for case in cases}
    gone = [case_id for case_id in mended.CASES if case_id.split("/")[0] in tried and case_id not in there]
    assert not gone, f"no cases any more: {gone[:3]}"
    return cases


def try_all(bench: Bench, cases: list, jobs: int, keep, progress) -> list:
    """(case, verdict, why, commands) in the order of cases."""
    WORK.update(bench=bench, cases=cases, keep=keep)
    results = []
    begin = shown = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs, initializer=process.lower_own_limits) as pool:
        for number, *result in pool.imap_unordered(attempt, range(len(cases)), chunksize=1):
            results.append((number, *result))
            if progress and time.monotonic() - shown > 20:
                shown = time.monotonic()
                bad = sum(verdict > Verdict.OK for _, verdict, *_ in results)
                print(f"{len(results)} of {len(cases)} cases, {bad} not ok, {shown - begin:.0f} s", file=sys.stderr)
    return [(cases[number], *result) for number, *result in sorted(results, key=lambda result: result[0])]


def table(results: list) -> str:
    """Families by verdicts."""
    counts = Counter((case.family, verdict) for case, verdict, *_ in results)
    families = list(dict.fromkeys(case.family for case, *_ in results))
    lines = ["family     " + "".join(f"{verdict.name.lower():>8}" for verdict in Verdict) + "   total"]
    for family in [*families, "all"]:
        row = [sum(n for (f, v), n in counts.items() if v == verdict and family in (f, "all")) for verdict in Verdict]
        lines.append(f"{family:<11}" + "".join(f"{n:>8}" for n in [*row, sum(row)]))
    return "\n".join(lines)


def report(results: list, seed: int, talkative: bool) -> int:
    """Prints what was not ok and the table; 1 where anything was wrong or crashed."""
    for case, verdict, why, commands in results:
        if verdict > Verdict.OK or talkative:
            print(f"{verdict.name.lower():<6} {why or '-'}  --seed {seed} --only '{case.id}'")
        for command in commands if talkative else ():
            print("      ", " ".join(repr(word) for word in command[1:])[:300])
    print(f"\n{table(results)}")
    return 1 if any(verdict >= Verdict.WRONG for _, verdict, *_ in results) else 0


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=Path, help="kvreplay")
    parser.add_argument("--family", default=",".join(FAMILIES), help="some of: %(default)s")
    parser.add_argument("--cases", type=int, help="so many, drawn by the seed from all families; without it all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=Path, help="a folder for what the cases left that are not ok")
    parser.add_argument("--only", help="cases whose id this is, or begins with it")
    parser.add_argument("--patience", type=float, default=20, help="seconds until a run counts as hanging")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    """0 where no case was wrong and nothing crashed."""
    asked = parse(arguments)
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=fast, ignore_cleanup_errors=True) as folder:
        bench = Bench(asked.program.absolute(), Path(folder), asked.seed, asked.patience)
        cases = all_cases(bench, asked.family.split(","))
        if asked.only:
            cases = [case for case in cases if case.id == asked.only] or \
                    [case for case in cases if case.id.startswith(asked.only)]
        cases = chosen(cases, asked.cases, asked.seed)
        if not cases:
            print("hostile.py: no such case", file=sys.stderr)
            return 2
        results = try_all(bench, cases, asked.jobs, asked.keep, not asked.only)
    return report(results, asked.seed, talkative=bool(asked.only))


if __name__ == "__main__":
    sys.exit(main())
