#!/usr/bin/env python3
"""Proves and times the CUDA path on a machine with a GPU; standard library only.

    prove.py OUT [--programs DIR] [--only STEP ...] [--seconds 420]
    prove.py OUT --programs build/release/bin --rehearse     the same on the processor that plays a device, small

Writes to OUT: summary.md (tables as tests/bench/RESULTS.md has them), proof.json, junit.xml, agreement.csv, sanitizer.txt, log.txt,
bench.json and counters.csv. A step that fails never stops the next; exits 1 where one failed, 2 where no device is. tests/device/pack.sh makes the archive
that holds this file and the programs.
"""

import argparse
import concurrent.futures
import csv
import datetime
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))
import agreement  # noqa: E402
from proof import Proof, one_line, table, tool  # noqa: E402

# Tests in which every kernel runs on a small group: what compute-sanitizer has the time for.
SMALL_TESTS = (
    "a CUDA backend computes on the most capable device",
    "what asks a backend comes to the same figures on a device",
    "stored numbers take the place of a group's own on a device",
)
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


# Facts and self-proof


def facts(proof):
    proof.figures["date"] = datetime.date.today().isoformat()
    proof.figures["cpus"] = os.cpu_count()
    about = HERE / "about.json"
    if about.exists():
        proof.figures.update(json.loads(about.read_text()))
    if proof.rehearse:
        proof.figures["device"] = "the processor, playing a device"
        return True
    query = "name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current,compute_mode"
    code, text, _ = proof.run([tool("nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi") or "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 20)
    proof.figures["nvidia-smi"] = text.strip()
    proof.figures["device"] = text.split(",")[0].strip() if code == 0 else "unknown"
    code, text, _ = proof.run([proof.program("kvreplay"), "--version"], 20)
    if code != 0:
        proof.case("facts", "the program starts", 0, text)
        return False
    code, text, _ = proof.run([proof.program("cuda_bench"), "--quick", "--tokens", "32", "--repeats", "1", "--only", "rows"], 60)
    proof.case("facts", "a device computes a small group as the CPU does", 0, "" if code == 0 else text[-2000:])
    return code != 2  # it says why there is none


def self_proof(proof):
    """A judge that finds nothing may be blind."""
    with tempfile.TemporaryDirectory() as temp:
        a, b = Path(temp, "a"), Path(temp, "b")
        for folder, figure in ((a, "1.0"), (b, "1.002")):
            folder.mkdir()
            (folder / "t.csv").write_text(f"head,error\n0,{figure}\n")
        seen = [not result.ok for result in agreement.compare(a, b)] == [True]
        proof.case("self-proof", "a figure that is off by 0.2 % is seen", 0, "" if seen else "it is not")
        seen = agreement.same_bytes(a, b) == "t.csv"
        proof.case("self-proof", "a byte that differs is seen", 0, "" if seen else "it is not")
    code, text, took = proof.run([proof.program("kvreplay_cuda_tests"), '"no test has this name"'], 30)
    proof.case("self-proof", "a test that is not there is no test that passed", took, "" if "No test" in text or code != 0 else text)


# Tests


def result_of(path, code, text):
    """(assertions that held, what failed) of Catch2's XML."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError):
        return 0, f"exit {code}, no result: {text[-1500:]}"
    overall = root.findall(".//TestCase/../OverallResults") or root.findall(".//OverallResults")
    held = max((int(o.get("successes", 0)) for o in overall), default=0)
    failed = max((int(o.get("failures", 0)) for o in overall), default=0)
    if code == 0 and failed == 0:
        return held, ""
    words = [f"{failed} of {held + failed} assertions"]
    for expression in root.findall(".//Expression[@success='false']")[:4]:
        words.append(f"{expression.get('filename', '').split('/')[-1]}:{expression.get('line')} " + one_line(expression.findtext("Expanded") or ""))
        exception = expression.findtext("Exception")
        if exception:
            words.append(one_line(exception))
    for kind in ("Info", "Exception", "FatalErrorCondition", "Failure"):
        words += [f"{kind}: {one_line(e.text or '')}" for e in root.findall(f".//{kind}")[:4]]
    return held, "; ".join(words)


def test_names(proof, program, tags):
    _, text, _ = proof.run([program, "--list-test-names-only", tags], 30, quiet=True)
    return [name for name in text.splitlines() if name.strip()]


def quoted(name):
    """A test's name as Catch2 takes it."""
    return re.sub(r"([\\,\[\]])", r"\\\1", name)


def run_tests(proof, program, names, at_once, seconds):
    """Each test in a process of its own: one that dies takes no other with it. Assertions that held."""
    held, ends = 0, time.monotonic() + seconds
    short = Path(program).name

    def one(name):
        with tempfile.TemporaryDirectory() as temp:
            file = Path(temp, "r.xml")
            env = {"KVREPLAY_DEVICE_PROGRAM": proof.program("kvreplay")}
            code, text, took = proof.run([program, quoted(name), "-r", "xml", "-o", file], max(1, ends - time.monotonic()), env=env)
            count, problem = result_of(file, code, text)
            proof.case(short, name, took, problem or ("" if count else "no assertion ran"))
            return count

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        held = sum(pool.map(one, names))
    return held


def tests(proof, tags="~[hog]~[planted]~[played]", at_once=8, seconds=100, name="assertions"):
    least_of = json.loads((HERE / "assertions.json").read_text())
    for short in ("kvreplay_cuda_tests", "kvreplay_analysis_cuda_tests"):
        program = proof.program(short)
        names = test_names(proof, program, tags)
        if proof.rehearse:
            names = [n for n in names if n in REHEARSED]
        held = run_tests(proof, program, names, at_once, seconds)
        least = least_of.get(f"{short} {tags}", 0)
        proof.figures.setdefault(name, {})[f"{short} {tags}"] = held
        few = held < least and not proof.rehearse
        proof.case("tests", f"{short} {tags}: {held} assertions held", 0, f"at least {least} are on record" if few else "")


REHEARSED = {
    "a CUDA backend computes on the most capable device",
    "float64 runs on the CPU whatever the backend",
    "errors that are none of memory are not for the CPU to mend",
    "float64 stays on the CPU where there is a device",
    "verify without device memory fails",
}


# Agreement


def synthetic(proof, folder, name, arguments, manifest=None):
    dump = folder / name
    code, text, took = proof.run([proof.program("kvreplay"), "synth", dump, "--quiet", *arguments], 60)
    if code != 0:
        proof.case("agreement", f"synth {name}", took, text)
    if manifest:  # the output that synth wrote is not the one of what is said now
        file = dump / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
        for output in dump.glob("layer_*/o.npy"):
            output.unlink()
    return dump


def dumps(proof, folder):
    long, short = (("8192", "4096") if not proof.rehearse else ("96", "64"))
    d = (lambda x: x) if not proof.rehearse else (lambda x: str(int(x) // 4))
    yield "sample", HERE / "sample" if (HERE / "sample").exists() else HERE.parents[1] / "data/samples/pystdlib-lm"
    yield "f16 d=128 G=4", synthetic(
        proof, folder, "f16",
        ["--layers", "1", "--kv-heads", "2", "--q-heads", "8", "--head-dim", d("128"), "--prompt", long, "--decode", "16", "--dtype", "float16"],
    )  # fmt: skip
    yield "bf16 d=64, window, sinks, soft cap", synthetic(
        proof, folder, "bf16",
        ["--layers", "1", "--kv-heads", "2", "--q-heads", "4", "--head-dim", d("64"), "--prompt", short, "--decode", "16", "--dtype", "bfloat16"],
        {"sliding_window": int(short) // 2, "sink_logit": [[0.5, 1.0, -2.0, 3.0]], "logit_softcap": 30.0},
    )  # fmt: skip
    yield "f32 d=80", synthetic(
        proof, folder, "f32",
        ["--layers", "1", "--kv-heads", "2", "--q-heads", "2", "--head-dim", d("80"), "--prompt", short, "--decode", "16", "--dtype", "float32"],
    )  # fmt: skip


COMMANDS = {
    "tokens": ["tokens"],
    "evict": ["evict", "--policy", "h2o,snapkv,tova+caote,snapkv+joint,h2o+exact_remove,keydiff,oracle", "--keep", "50%,20%"],
    "decode": ["evict", "--policy", "h2o,tova,snapkv", "--keep", "20%", "--phase", "decode"],
    "search": ["evict", "--policy", "greedy_exact", "--keep", "20%", "--layers", "0"],
    "budget": ["budget"],
    "channels": ["channels", "--ratio", "0.4"],
}
SMALL_ONLY = {"search"}  # quadratic work on the CPU


def agree(proof, seconds=150):
    rows, fields = [], []
    at_once = 1 if proof.rehearse else 4
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temp:
        temp = Path(temp)
        chosen = list(dumps(proof, temp))
        jobs = []
        for name, dump in chosen:
            for what, arguments in COMMANDS.items():
                if what in SMALL_ONLY and name != "sample":
                    continue
                if proof.rehearse and (name == "sample" or what in ("search", "decode")):
                    continue
                jobs.append((name, dump, what, arguments))
            jobs.append((name, dump, "verify", ["verify"]))
        ends = time.monotonic() + seconds

        def one(job):
            name, dump, what, arguments = job
            label = f"{what}, {name}"
            left = lambda: max(1, ends - time.monotonic())
            program = proof.program("kvreplay")
            if what == "verify":
                code, text, took = proof.run([program, "verify", dump, "--backend", "cuda", "--tokens", "8", *(["--layers", "0"] if name == "sample" else [])], left())
                proof.case("agreement", label, took, "" if code == 0 else text[-3000:])
                return None
            runs = {"cuda": [], "cuda again": [], "cuda, 1 thread": ["--threads", "1"], "cuda, 16 threads": ["--threads", "16"], "cpu": []}
            if proof.rehearse:
                del runs["cuda again"], runs["cuda, 16 threads"]
            if name != "sample" and "cuda again" in runs and what in ("channels", "evict"):
                del runs["cuda, 1 thread"]  # the CPU's part takes long
            out, times = {}, {}
            for run, more in runs.items():
                out[run] = temp / re.sub(r"\W", "_", f"{label} {run}")
                more = [*more, *(["--threads", "4"] if not more else [])]
                code, text, times[run] = proof.run(
                    [program, arguments[0], dump, *arguments[1:], "--out", out[run], "--backend", run.split(",")[0].split()[0], "--quiet", *more], left()
                )
                if code != 0:
                    proof.case("agreement", f"{label}, {run}", times[run], f"exit {code}: {text[-2000:]}")
                    return None
            for run in list(runs)[1:-1]:
                file = agreement.same_bytes(out["cuda"], out[run])
                proof.case("agreement", f"{label}: {run} gives the bytes of cuda", 0, f"{file} differs" if file else "")
            results = agreement.compare(out["cpu"], out["cuda"])
            worst = max(results, key=lambda r: r.worst)
            problem = "" if worst.ok else f"{sum(not r.ok for r in results)} files; {worst.file}: {worst.where}"
            proof.case("agreement", f"{label}: cuda agrees with cpu", times["cuda"], problem)
            for folder in out.values():
                shutil.rmtree(folder)
            with proof.lock:
                fields.extend([name, what, r.file, r.entries, r.differing, f"{r.worst:.3g}", r.where] for r in results)
                differing = [r for r in results if r.worst > 0]
                rows.append([what, name, len(results), len(differing), sum(r.differing for r in differing), f"{worst.worst:.2g}", worst.file])
            return None

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, jobs))
    with (proof.out / "agreement.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["dump", "command", "file", "entries", "differing", "worst", "where"], *fields])
    head = ["command", "dump", "files", "that differ", "entries that do", "worst, of what is allowed", "in"]
    proof.sections["Agreement of cuda with cpu"] = table(head, sorted(rows))


# Memory


def memory(proof):
    """Tests that take all of the card's memory: alone."""
    tests(proof, "[hog]", 1, 40)


# compute-sanitizer


def sanitize(proof, seconds=150):
    sanitizer = tool("compute-sanitizer")
    if sanitizer is None:
        proof.sections["compute-sanitizer"] = "Not found here."
        return
    program, rows = proof.program("kvreplay_cuda_tests"), []
    texts = []

    def one(what):
        which, planted = what
        names = [f"planted for {which}"] if planted else SMALL_TESTS
        code, text, took = proof.run(
            [sanitizer, "--tool", which, "--error-exitcode", "9", "--print-limit", "20", program,  ",".join(quoted(name) for name in names)],
            seconds,
        )
        found = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
        errors = sum(int(a or b) for a, b in found) if found else None
        if planted:
            problem = "" if errors else f"its planted fault was not seen: {text[-800:]}"
        else:
            problem = "" if code == 0 and errors == 0 else f"exit {code}, {errors} errors: {text[-3000:]}"
        proof.case("sanitizer", f"{which}, {'planted fault' if planted else 'small groups through every kernel'}", took, problem)
        with proof.lock:
            rows.append([which, "planted fault" if planted else "small groups", errors, f"{took:.0f}"])
            texts.append(f"== {which}, {'planted' if planted else 'tests'}\n{text[-60000:]}\n")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, [(t, planted) for planted in (False, True) for t in TOOLS]))
    (proof.out / "sanitizer.txt").write_text("\n".join(texts))
    proof.sections["compute-sanitizer"] = table(["tool", "what", "errors", "s"], sorted(rows))


def proofs(proof):
    """What times nothing, side by side."""
    parts = [tests, agree] + ([] if proof.rehearse else [sanitize])
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        for part, job in [(part, pool.submit(part, proof)) for part in parts]:
            try:
                job.result()
            except Exception:
                proof.case("proofs", part.__name__, 0, traceback.format_exc())


# Times


def bench(proof):
    more = ["--quick", "--tokens", "24", "--repeats", "1"] if proof.rehearse else []
    code, text, took = proof.run([proof.program("cuda_bench"), "--json", proof.out / "bench.json", *more], 120)
    proof.case("bench", "cuda_bench", took, "" if code == 0 else f"exit {code}: {text[-2000:]}")
    proof.sections["cuda_bench"] = text.replace("\n## ", "\n### ").removeprefix("## ")


NCU_SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats", "LaunchStats", "Occupancy")
COUNTERS = {
    "gpu__time_duration.sum": "time",
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed": "issue active, %",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "tensor, %",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": "xu, %",
    "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": "fp64, %",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "DRAM, %",
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": "shared and L1, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps, %",
    "launch__registers_per_thread": "registers",
    "launch__occupancy_limit_registers": "blocks by registers",
    "launch__occupancy_limit_shared_mem": "blocks by shared",
}


def counters(proof):
    """What the kernels keep busy, by Nsight Compute."""
    ncu = tool("ncu")
    if ncu is None or proof.rehearse:
        proof.sections["Counters"] = "Nsight Compute is not here."
        return
    rows = []
    kept = []
    for what in ("window", "rows"):
        code, text, took = proof.run(
            [ncu, "--clock-control", "none", "--csv", "--page", "raw", *(x for section in NCU_SECTIONS for x in ("--section", section)),
             "-k", "regex:score_kernel|softmax_kernel|finish_kernel", "--launch-skip", 12, "--launch-count", 9, "--kill", "yes",
             proof.program("cuda_bench"), "--only", what, "--repeats", "1", "--quick", "--tokens", "32768"],
            40, quiet=True,
        )  # fmt: skip
        lines = [line for line in text.splitlines() if line.startswith('"')]
        kept += lines
        parsed = list(csv.DictReader(lines))
        proof.case("counters", what, took, "" if parsed else f"exit {code}: {text[-1500:]}")
        seen = set()
        for row in parsed[1:]:  # the first has the units
            name, grid = row.get("Kernel Name", ""), row.get("Grid Size", "")
            if (name, grid) in seen or grid.startswith("(3, "):  # of the small group that is checked first
                continue
            seen.add((name, grid))
            rows.append([what, f"`{name[:150]}`", grid, *(row.get(key, "") for key in COUNTERS)])
    (proof.out / "counters.csv").write_text("\n".join(kept) + "\n")
    proof.sections["Counters"] = table(["section", "kernel", "grid", *COUNTERS.values()], rows)


def peers(proof):
    peer = next((p for p in (HERE / "bench/peer_torch.py", HERE.parent / "bench/peer_torch.py") if p.exists()), None)
    shapes = ["32768,32,4", "131072,32,4", "32768,32768,1"]
    if proof.rehearse:
        code, text, took = proof.run([sys.executable, peer, "--shape", "64,32,1"], 60)
    else:
        code, text, took = proof.run([sys.executable, peer, "--device", "cuda", "--compile", "--shape", *shapes], 90)
    proof.case("peers", "peer_torch", took, "" if code in (0, 124) else text[-1500:])
    told = [line for line in text.splitlines() if line.startswith(("|", "PyTorch", "peer_torch"))]
    proof.sections["PyTorch"] = "\n".join([*told[:1], "", *told[1:], *(["(cut off)"] if code == 124 else [])])


def model(proof):
    """Layers of an 8B model, from the command line: what the device starts with, a command pays once."""
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temp:
        shape = ["--layers", "4", "--kv-heads", "8", "--q-heads", "32", "--head-dim", "128", "--prompt", "32640", "--decode", "128", "--dtype", "float16"]
        if proof.rehearse:
            shape = ["--layers", "2", "--kv-heads", "1", "--q-heads", "2", "--head-dim", "16", "--prompt", "64", "--decode", "4", "--dtype", "float16"]
        dump = synthetic(proof, Path(temp), "model", shape)
        commands = {
            "tokens, attention alone, 1 layer": ["tokens", "--metrics", "attn", "--layers", "0"],
            "tokens, attention alone, 4 layers": ["tokens", "--metrics", "attn"],
            "tokens, 1 layer": ["tokens", "--layers", "0"],
            "tokens, 4 layers": ["tokens"],
            "evict, 1 layer": ["evict", "--layers", "0"],
            "budget, 1 layer": ["budget", "--layers", "0"],
            "channels, 1 layer": ["channels", "--layers", "0"],
        }
        for what, arguments in commands.items():
            times = {}
            for backend in ("cuda", "cuda", "cpu"):
                out = Path(temp, "out")
                shutil.rmtree(out, ignore_errors=True)
                code, text, took = proof.run([proof.program("kvreplay"), arguments[0], dump, *arguments[1:], "--out", out, "--backend", backend], 40)
                proof.case("model", f"{what}, {backend}", took, "" if code == 0 else f"exit {code}: {text[-1000:]}")
                times.setdefault(backend, []).append(took)
            rows.append([what, f"{min(times['cuda']):.2f}", f"{min(times['cpu']):.2f}", f"{min(times['cpu']) / min(times['cuda']):.2f}"])
    title = "Layers of 32 query heads on 8, d = 128, 32640 + 128 positions, float16: wall time of the command, s"
    proof.sections[title] = table(["command", "cuda", f"cpu ({os.cpu_count()} threads)", "ratio"], rows)
    proof.figures["model"] = rows


STEPS = {"self-proof": self_proof, "proofs": proofs, "bench": bench, "model": model, "counters": counters, "peers": peers, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", type=Path, default=HERE / "bin")
    parser.add_argument("--rehearse", action="store_true", help="with the emulated programs, small")
    parser.add_argument("--only", nargs="*", choices=STEPS, help="these steps alone")
    parser.add_argument("--seconds", type=float, default=420)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    proof = Proof(options.out.resolve(), options.programs.resolve(), options.rehearse, start + options.seconds)
    (proof.out / "log.txt").write_text("")
    if not facts(proof):
        proof.write()
        print("no device that these programs run on; see log.txt")
        return 2
    took = {}
    for name in options.only or STEPS:
        began = time.monotonic()
        if began > proof.ends - 3:
            proof.case("steps", name, 0, "no time was left")
            continue
        try:
            STEPS[name](proof)
        except Exception:
            proof.case("steps", name, 0, traceback.format_exc())
        took[name] = round(time.monotonic() - began, 1)
        proof.figures["seconds"] = took
        proof.write()
        print(f"{name}: {took[name]} s", flush=True)
    failed = [case for case in proof.cases if case.problem]
    proof.write()
    print(f"{len(proof.cases) - len(failed)} of {len(proof.cases)} checks hold; {time.monotonic() - start:.0f} s; {proof.out}/summary.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
