#!/usr/bin/env python3
"""Do two builds of kvreplay give the same results, byte for byte?

  same_results.py OLD NEW [DUMP...] [--quick] [--only WORD] [--printed] [--backend NAME] [--keep DIR]

OLD and NEW are programs. Both run the same commands over each dump (the sample), in folders of their own and with the same relative
paths: tokens, evict, budget, channels and analyze in every semantics, phase and precision, shards and their merge, several
dumps, compare and report. A line a case says whether what they wrote is the same; a difference names its file and line. Standard library
only; exit status 1 on any difference.

--quick takes two layers and fewer cases. What both programs refuse, in the same words, counts as the same, and is said.

Not compared: run.json, fingerprints, versions, and the figures/ of shards, which are the program's own matter. A report and a page
quote run.json: both programs make theirs with OLD's.
"""

import argparse
import array
import contextlib
import csv
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[2] / "data/samples/pystdlib-lm"
SEMANTICS = ("paper", "official", "kvpress")
PRECISIONS = ("f32", "f64")
POLICIES = (
    "streaming,h2o,h2o+value,h2o+key,h2o+joint,h2o+caote,h2o+fastcaote,tova,tova+caote,tova+exact_remove,snapkv,snapkv+joint,"
    "snapkv+exact_joint,knorm,keydiff,oracle,oracle_exact"
)
CHANNEL_METHODS = "magnitude,think,iap,exchange,exchange+think,output"


@dataclass(frozen=True)
class Case:
    """One command: its results go to the folder `name` unless it names a place itself."""

    name: str
    arguments: tuple
    quick: bool = False  # --quick runs it too
    writes: tuple = ()  # what it writes, where that is not the folder `name`
    keep: bool = False  # later cases read its results
    run_of: str = ""  # it quotes this folder's run.json


def cases(dump, shape, quick, backend):
    """All cases of one dump, in the order in which they run: what a case reads comes before it."""
    prompt = shape.prompt
    policies = POLICIES + (",expected_attention" if shape.rope else "")
    channel_methods = CHANNEL_METHODS + (",rope_pairs" if shape.rope else "")
    phases = ("prefill", f"blockwise:{prompt // 7}", "decode", "append-only")
    layers = ("--layers", "0,1") if quick else ()
    short = ("--layers", "0")  # for what takes long, and does not look across layers

    def case(name, command, *arguments, where=layers, on=(dump,), quick=False, keep=False):
        name = name.replace(":", "_")
        return Case(name, (command, *on, "--out", name, "--backend", backend, *where, *arguments), quick, keep=keep)

    yield case("tokens f32", "tokens", "--reserve", f"0,{prompt // 28},{prompt // 7}", quick=True, keep=True)
    yield case("tokens f64", "tokens", "--precision", "f64", quick=True, keep=True)
    yield case("tokens, a wide window", "tokens", "--window", str(prompt // 2), "--per-query-head", quick=True)
    yield case("tokens, several windows", "tokens", "--window", f"{prompt // 14},5%,all", "--reserve", f"0,{prompt // 28}")
    yield case("tokens, half the prompt", "tokens", "--prompt-len", str(prompt // 2), "--metrics", "attn,caote,oracle_next,oracle_importance")
    yield case("tokens, every row", "tokens", "--window", "1000000", "--metrics", "attn,key,exact_key,exact_remove,knorm")

    for precision, semantics, phase in itertools.product(PRECISIONS, SEMANTICS, phases):
        budget = ("--budget", f"{prompt // 14},{prompt // 4}") if phase == "decode" else ()
        arguments = ("--policy", policies, "--semantics", semantics, "--phase", phase, "--precision", precision, *budget)
        some = precision == "f32" and (semantics == "paper" or phase == "prefill")
        yield case(f"evict {semantics} {phase} {precision}", "evict", *arguments, quick=some)
    for semantics in SEMANTICS:
        yield case(f"evict {semantics} per query head", "evict", "--policy", policies, "--semantics", semantics, "--per-query-head",
                   "--phase", ",".join(phases), "--sigma", "0.7", quick=semantics == "official")
        yield case(f"evict {semantics} pinned", "evict", "--policy", "h2o,snapkv,tova+value,keydiff", "--semantics", semantics, "--sinks", "4",
                   "--recent", str(prompt // 56), "--pool", "avg:5", "--window", "16", "--phase", ",".join(phases[:3]), "--decode-window", "8")
        yield case(f"evict {semantics} three levers", "evict", "--policy", "none,snapkv", "--semantics", semantics, "--channels", "iap:0.5",
                   "--bits", "4", "--sigma", "0.3,0.5", quick=semantics == "paper")
    yield case("evict diff", "evict", "--policy", policies, "--diff", ",".join(SEMANTICS), quick=True, keep=True)
    for bits, method in (("2", "output:0.4"), ("8", "rope_pairs:0.25" if shape.rope else "think:0.25")):
        yield case(f"evict {bits} bits", "evict", "--policy", "none,h2o", "--channels", method, "--bits", bits, "--group", "16", "--residual", "48",
                   "--per-query-head", "--precision", "f64")
    yield case("evict searches", "evict", "--policy", "greedy_exact,exchange,exchange+snapkv,exchange+value", where=short, quick=True)
    yield case("evict searches on future", "evict", "--policy", "greedy_exact,exchange", "--on", "future", "--sigma", "0.8", where=short)
    yield case("evict given", "evict", "--policy", "snapkv,h2o+mine,snapkv+mine,exchange+mine", "--score", "mine=mine.npy",
               "--kept", "other=other.npy", "--sigma", "0.8", quick=True, where=())

    yield case("budget", "budget", "--order", "snapkv,keydiff,value,exact_remove,attn", quick=True, keep=True)
    yield case("budget f64", "budget", "--precision", "f64")
    for semantics in SEMANTICS:
        yield case(f"budget {semantics} profile", "budget", "--semantics", semantics, "--profile", "budget/budget_curves.npy", "--sigma", "0.3,0.8",
                   quick=semantics == "kvpress")
    yield case("budget normalised", "budget", "--normalise", "layer", "--floor", "0.1", "--sinks", "4", "--recent", str(prompt // 28),
               "--sigma", "0.5,0.8,0.85", quick=True)
    yield case("budget given", "budget", "--order", "mine,snapkv", "--score", "mine=mine.npy", where=())

    for semantics in SEMANTICS:
        yield case(f"channels {semantics}", "channels", "--method", channel_methods, "--semantics", semantics, quick=True)
    yield case("channels f64, protected", "channels", "--method", channel_methods, "--precision", "f64", "--protect", "5:15", "--recent", "64",
               "--window", "50", "--ratio", "0.25,0.5")
    yield case("channels, pictures", "channels", "--method", "iap", "--png", "--ratio", "0.5", where=short)

    yield case("analyze", "analyze", quick=True, keep=True)
    yield case("analyze f64", "analyze", "--precision", "f64", "--reserve", "0,32", "--per-query-head", keep=True)
    yield case("analyze some", "analyze", "--only", "tokens,budget", "--layers", "1", "--window", "20", where=())
    for part in ("1/2", "2/2"):
        yield case(f"shard {part}".replace("/", " of "), "analyze", "--shard", part, quick=True, keep=True)
    yield Case("merge", ("merge", "shard 1 of 2", "shard 2 of 2", "--out", "merge", "--backend", backend), quick=True)

    prompts = ("prompt-1", "prompt-2", "prompt-3")
    for name, length, dtype in zip(prompts, ("160", "200", "130"), ("float32", "float16", "bfloat16")):
        arguments = ("--seed", length, "--prompt", length, "--dtype", dtype, "--layers", "2", "--head-dim", "32", "--decode", "24")
        yield Case(f"synth {name}", ("synth", name, *arguments), True, (name,), True)
    yield case("several dumps", "analyze", on=prompts, where=(), quick=True, keep=True)
    yield case("several dumps, evict", "evict", "--policy", POLICIES + ",expected_attention", "--diff", "paper,kvpress",
               "--phase", "prefill,decode", on=prompts, where=())
    yield case("several dumps, budget", "budget", on=prompts, where=())
    yield case("several dumps, channels", "channels", "--method", CHANNEL_METHODS + ",rope_pairs", on=prompts, where=())
    yield case("another dump", "analyze", on=(prompts[0],), where=(), quick=True, keep=True)

    def compare(name, *arguments):
        return Case(name, ("compare", *arguments, "--all", "--out", name, "--html", f"{name}.html"), True,
                    (name, f"{name}.html", f"{name}-figures"))

    yield compare("compare precisions", "tokens f32", "tokens f64")
    yield compare("compare semantics", "evict diff", "evict diff", "--left", "semantics=paper", "--right", "semantics=kvpress")
    yield compare("compare models", "analyze", "another dump")

    for name in ("analyze", "several dumps") + (() if quick else ("analyze f64",)):
        yield Case(f"report of {name}", ("report", name), True, (f"{name}/report",), run_of=name)


def write_npy(path, kind, shape, values):
    """An array of `kind`, "<f4" or "|b1", in C order."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values.tobytes())


@dataclass(frozen=True)
class Shape:
    """What the cases of a dump depend on."""

    layers: int
    kv_heads: int
    prompt: int
    rope: bool


def shape_of(program, dump):
    found = json.loads(subprocess.run([program, "info", dump, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    return Shape(found["layers"], found["n_kv"], found["l"], all(rule["rope"] for rule in found["rules"]))


def write_given(shape, folder):
    """mine.npy, a score, and other.npy, a kept set: [layers, kv_heads, prompt], the same for both programs."""
    extents, numbers = (shape.layers, shape.kv_heads, shape.prompt), random.Random(7)
    size = math.prod(extents)
    write_npy(folder / "mine.npy", "<f4", extents, array.array("f", (numbers.random() for _ in range(size))))
    write_npy(folder / "other.npy", "|b1", extents, array.array("B", (numbers.random() < 0.4 for _ in range(size))))


def plain_json(data):
    """JSON without what may differ, a line a value, its numbers as they are written."""

    def plain(tree):
        if isinstance(tree, dict):
            return {k: plain(v) for k, v in tree.items() if "fingerprint" not in k and k not in ("version", "program_version")}
        return [plain(each) for each in tree] if isinstance(tree, list) else tree

    return json.dumps(plain(json.loads(data, parse_float=str, parse_int=str)), indent=1, ensure_ascii=False).encode()


def plain_fingerprints(data):
    """dumps.csv without its fingerprints."""
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    at = rows[0].index("fingerprint")
    return "\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows).encode()


def first_difference(old, new, name):
    """Where two files differ: ":line" and both lines of text, the byte of anything else."""
    if old == new:
        return ""
    if name.endswith(".json"):
        with contextlib.suppress(ValueError):  # what is no JSON is compared as it is
            old, new = plain_json(old), plain_json(new)
    elif name == "dumps.csv":
        old, new = plain_fingerprints(old), plain_fingerprints(new)
    if old == new:
        return ""
    if b"\0" in old[:4096] or b"\0" in new[:4096]:
        at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        return f", byte {at} ({len(old)} bytes, {len(new)} bytes)"
    lines = itertools.zip_longest(old.split(b"\n"), new.split(b"\n"), fillvalue=b"(no line)")
    number, (a, b) = next((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1])
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    start = max(0, at - 60)
    shown = [line[start : start + 160].decode(errors="replace") for line in (a, b)]
    return f":{number}\n      old: {shown[0]}\n      new: {shown[1]}"


def files_of(place):
    """The files to compare, by their names within `place`."""
    if place.is_file():
        return {place.name: place}
    found = {}
    for folder, _, names in os.walk(place):
        within = os.path.relpath(folder, place)
        ours = (name for name in names if name not in ("run.json", "files.csv") and not name.endswith(".figures"))
        found.update((os.path.normpath(f"{within}/{name}"), f"{folder}/{name}") for name in ours)
    return found


def content(path):
    with open(path, "rb") as file:
        return file.read()


def compare_places(old, new):
    """The number of files of a result, and what is wrong with them: the first difference, and how many files differ."""
    ours, theirs = files_of(old), files_of(new)
    wrong = [f"{name}: only OLD wrote it" for name in sorted(ours.keys() - theirs.keys())]
    wrong += [f"{name}: only NEW wrote it" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        where = first_difference(content(ours[name]), content(theirs[name]), os.path.basename(name))
        if where:
            wrong.append(name + where)
    return len(ours), wrong


def without_times(text):
    """What is printed, without how long it took."""
    return re.sub(r"\b[\d.]+ (s|ms|min|h)\b", "# \\1", text)


class Comparison:
    def __init__(self, old, new, work, printed):
        self.programs = {"old": old, "new": new}
        self.work, self.printed = work, printed
        self.different, self.refused, self.ran = [], [], 0

    def run(self, case):
        self.ran += 1
        results, seconds = {}, {}
        for side, program in self.programs.items():
            here = self.work / side
            if case.run_of and side == "new":
                for path in (self.work / "old" / case.run_of).rglob("run.json"):
                    shutil.copy(path, here / path.relative_to(self.work / "old"))
            begin = time.monotonic()
            results[side] = subprocess.run([program, *case.arguments], cwd=here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
            seconds[side] = time.monotonic() - begin
        old, new = results["old"], results["new"]
        wrong, files, note = [], 0, ""
        if old.returncode != new.returncode:
            wrong.append(f"exit status {old.returncode} and {new.returncode}: {(new if new.returncode else old).stderr.strip()[-300:]}")
        elif old.returncode and old.stderr != new.stderr:
            wrong.append(f"refused in other words\n      old: {old.stderr.strip()[:300]}\n      new: {new.stderr.strip()[:300]}")
        elif old.returncode:
            self.refused.append(case.name)
            note = f"  refused by both: {old.stderr.strip()[:120]}"
        if self.printed:
            where = first_difference(without_times(old.stdout).encode(), without_times(new.stdout).encode(), "printed")
            wrong += ["what is printed" + where] if where else []
        for place in case.writes or (case.name,):
            a, b = (self.work / side / place for side in self.programs)
            if a.exists() or b.exists():
                count, found = compare_places(a, b)
                files += count
                wrong += [f"{place}/{each}" if a.is_dir() else each for each in found]
            if not case.keep:
                for path in (a, b):
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if not old.returncode and not files and not wrong:
            wrong.append("neither wrote anything")
        print(f"{'DIFFERS' if wrong else 'same':8}{case.name:34}{seconds['old']:7.1f} s{seconds['new']:7.1f} s{files:7} files{note}", flush=True)
        if wrong:
            self.different.append(case.name)
            print(f"    {wrong[0]}" + (f"\n    and {len(wrong) - 1} more" if len(wrong) > 1 else ""), flush=True)


def fast_folder():
    """In memory where there is room: the results are many small files."""
    memory = Path("/dev/shm")
    return memory if "TMPDIR" not in os.environ and memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", type=Path)
    parser.add_argument("new", metavar="NEW", type=Path)
    parser.add_argument("dumps", metavar="DUMP", type=Path, nargs="*", default=[SAMPLE])
    parser.add_argument("--quick", action="store_true", help="two layers, fewer cases")
    parser.add_argument("--only", metavar="WORD", default="", help="only cases whose name holds it, and those that they may read")
    parser.add_argument("--printed", action="store_true", help="compare what is printed, too")
    parser.add_argument("--backend", metavar="NAME", default="cpu", help="what both compute with [cpu]")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="work here, and leave there what is not removed on the way")
    arguments = parser.parse_intermixed_args()
    begin = time.monotonic()
    different, refused, ran = [], [], 0
    for dump in arguments.dumps:
        print(f"{dump}: OLD {arguments.old}, NEW {arguments.new}", flush=True)
        with tempfile.TemporaryDirectory(prefix="same-results-", dir=fast_folder()) as temporary:
            work = (arguments.keep / dump.name if arguments.keep else Path(temporary)).resolve()
            shape = shape_of(arguments.old.resolve(), dump.resolve())
            for side in ("old", "new"):
                (work / side).mkdir(parents=True)
                write_given(shape, work / side)
            comparison = Comparison(arguments.old.resolve(), arguments.new.resolve(), work, arguments.printed)
            for case in cases(dump.resolve(), shape, arguments.quick, arguments.backend):
                if (case.quick or not arguments.quick) and (arguments.only in case.name or case.keep):
                    comparison.run(case)
        different += comparison.different
        refused += comparison.refused
        ran += comparison.ran
    seconds = time.monotonic() - begin
    print(f"\n{ran} cases in {seconds:.0f} s: {ran - len(different)} the same, {len(refused)} of them refused by both; {len(different)} differ")
    for name in different:
        print(f"  {name}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
