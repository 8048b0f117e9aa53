#!/usr/bin/env python3
"""Measures how well the figures of a replay predict what evictions cost the model, prompt by prompt.

  study.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--out DIR]

Of every model and prompt it captures a dump with gradients, replays every policy and division of a budget, puts the
model in the loop, and keeps one row a case in DIR/<model>/<prompt>/cases.csv; what has that file is not done again.
--out gathers them as cases.csv, of running text, retrieval.csv, where the answer is copied from the prompt, and prompts.csv;
analysis.py reads these. A dump is removed when its prompt is done.
"""
from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CAPTURE = HERE.parents[1] / "data" / "capture"
sys.path.insert(0, str(CAPTURE))

from kvresults import open_results  # noqa: E402

from prompts import COPIED, MODULES, PROMPTS  # noqa: E402
from sums import FIGURES, changes, figures_of  # noqa: E402

SIGMAS = ("0.5", "0.8", "0.9")
STEPS, SAMPLES, WINDOW = 128, 24, 32
POLICIES = ("streaming", "knorm", "keydiff", "expected_attention",
            "h2o", "h2o+value", "h2o+key", "h2o+joint", "h2o+caote", "h2o+exact_loss",
            "tova", "tova+caote", "snapkv", "snapkv+value", "snapkv+joint", "snapkv+caote", "snapkv+exact_loss",
            "greedy_exact", "oracle", "oracle_exact", "score:oracle_loss")
DIVISIONS = ("pyramid", "ada", "lu", "optimal")  # of the order snapkv, the bare problem
REPLAYED = ("output_error", "layer_output_error", "residual_error", "eviction_loss",
            "loss_row", "loss_head", "loss_joint", "dnll")
ALONE = "dialogue"  # the prompt of which layers are changed one at a time, too
ALONE_POLICIES, ALONE_SIGMA = ("streaming", "keydiff", "h2o", "tova", "snapkv", "greedy_exact"), "0.8"
TRUE = ("kl", "kl_median", "kl_p95", "dnll", "same_top1")
MEASURED = ("model", "prompt", "policy", "budget", *REPLAYED, *(f"true_{name}" for name in TRUE))
LAYER_FIGURES = ("output_error", "layer_output_error", "loss_row", "loss_head")
LAYERS = ("model", "prompt", "policy", "budget", "layer", "whole_kl", "kl", *LAYER_FIGURES)
SECOND_ORDER = ("model", "prompt", "policy", "budget", "second_order", "true_kl", "true_kl_large", "second_order_large",
                "true_kl_rest", "second_order_rest")  # of second_order.py
SUMMARY = ("model", "prompt", "kind", "source", "tokens", "nll", "sha256")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--keep-dumps", action="store_true", help="0.3 to 1 GB a prompt")
    args = parser.parse_args()
    if not args.model or not all("=" in text for text in args.model):
        parser.error("--model: expected NAME=FILE")
    for model, file in (text.split("=", 1) for text in args.model):
        for prompt in PROMPTS:
            if not args.prompt or prompt.name in args.prompt:
                measure(args, model, Path(file), prompt)
    gather(args.work, args.out or args.work)
    return 0


def common_options(parser) -> None:
    """Of all that goes through models and prompts."""
    parser.add_argument("--program", default="kvreplay", help="the kvreplay to run")
    parser.add_argument("--work", type=Path, default=Path("build/study"), help="where dumps and results are written")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE", help="a GGUF file or a folder")
    parser.add_argument("--ids", type=Path, metavar="DIR", help="of models without a tokenizer: DIR/<prompt>.json")
    parser.add_argument("--longest", type=int, default=1 << 30, metavar="N", help="tokens of a prompt at most")
    parser.add_argument("--prompt", nargs="+", metavar="NAME", choices=[prompt.name for prompt in (*PROMPTS, *MODULES)],
                        help="only these")
    parser.add_argument("--out", type=Path, help="where the tables are gathered (default: the work folder)")
    parser.add_argument("--threads", default=str(os.cpu_count()), help="of every step")


def measure(args, model, file, prompt) -> None:
    """One prompt of one model, unless it is there."""
    folder = args.work / model / prompt.name
    wanted = ["cases.csv"] + ["layers.csv", "second_order.csv"] * (prompt.name == ALONE)
    if all((folder / name).exists() for name in wanted):
        return
    run = Steps(args, folder)
    dump, results = folder / "dump", folder / "evict"
    run.capture(model, file, prompt, dump, "--gradients", SAMPLES, "--rows", f"future,window={WINDOW}",
                "--gradients-nll")
    run("budget", args.program, "budget", dump, "--out", folder / "budget", "--order", "snapkv", "--semantics", "raw",
        "--force", "--quiet", "--method", ",".join(DIVISIONS), "--sigma", ",".join(SIGMAS), "--threads", args.threads)
    run("evict", args.program, "evict", dump, "--out", results, "--policy", ",".join(POLICIES), "--force", "--quiet",
        "--sigma", ",".join(SIGMAS), "--threads", args.threads, *divided(folder))
    run.validate(file, dump, results)
    run.write(model, prompt, dump, results)
    if prompt.name == ALONE:
        alone = folder / "layers"
        run("evict_layers", args.program, "evict", dump, "--out", alone, "--policy", ",".join(ALONE_POLICIES),
            "--force", "--quiet", "--sigma", ALONE_SIGMA, "--threads", args.threads)
        run.validate(file, dump, alone, "--each-layer", step="validate_layers")
        write_csv(folder / "layers.csv", LAYERS, layers_of(model, prompt, alone))
        run("second_order", str(HERE / "second_order.py"), "--work", args.work, "--model", f"{model}={file}")
    if not args.keep_dumps:
        shutil.rmtree(dump)


def divided(folder):
    """The kept sets of every division of the budget, as evict takes a user's: arrays [layers, n_kv, l]."""
    found = []
    budget = open_results(folder / "budget")
    (folder / "divided").mkdir(exist_ok=True)
    for method in DIVISIONS:
        for sigma in SIGMAS:
            kept = np.stack([budget.kept(f"snapkv-{method}-{sigma}", layer).values for layer in budget.layers])
            path = folder / "divided" / f"{method}-{sigma}.npy"
            np.save(path, kept)
            found += ["--kept", f"snapkv_{method}_{sigma}={path}"]
    return found


class Steps:
    """The commands of one prompt: each leaves a mark when it is done, and is not run again."""

    def __init__(self, args, folder):
        self.args, self.folder, self.began = args, folder, time.monotonic()
        self.marks = folder / "done"
        self.marks.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "OMP_NUM_THREADS": args.threads}

    def __call__(self, step, program, *arguments) -> None:
        if (self.marks / step).exists():
            return
        begin = [sys.executable, CAPTURE / program] if program.endswith(".py") else [program]
        command = [str(part) for part in (*begin, *arguments)]
        began = time.monotonic()
        with open(self.folder / f"{step}.log", "w") as log:
            status = subprocess.run(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT).returncode
        if status:
            last = (self.folder / f"{step}.log").read_text().strip().splitlines()[-1:]
            sys.exit(f"study: {self.folder}: {step} ended with {status}: {' '.join(last)}")
        print(f"{self.folder}: {step} {time.monotonic() - began:.0f} s", flush=True)
        (self.marks / step).touch()

    def capture(self, model, file, prompt, dump, *more) -> None:
        ids = self.args.ids
        source = ["--ids", ids / f"{prompt.name}.json"] if ids else ["--prompt", self.text(prompt)]
        if not dump.exists():
            (self.marks / "capture").unlink(missing_ok=True)
        self("capture", "kvcapture.py", "--model" if file.is_dir() else "--gguf", file, *source, "--name", model, "--out",
             dump, "--force", "--prompt-len", min(prompt.tokens, self.args.longest), "--decode", STEPS, *more)

    def validate(self, file, dump, results, *more, step="validate") -> None:
        resumed = ["--resume"] if (results / "validate.json").exists() else []
        self(step, "kvvalidate.py", "--model", file, "--dump", dump, "--results", results, *more, *resumed)

    def text(self, prompt) -> Path:
        path = self.folder / "prompt.txt"
        path.write_text(prompt.text(), encoding="utf-8")
        return path

    def write(self, model, prompt, dump, results) -> None:
        """cases.csv and prompt.csv; sums.npz is for figures that kvreplay does not have."""
        began = time.monotonic()
        cases = read_cases(results)
        np.savez_compressed(self.folder / "sums.npz", **changes(dump, results, list(cases)))
        rows = []
        for key, figures in cases.items():
            policy, budget = named(key[0], key[3])
            rows.append({"model": model, "prompt": prompt.name, "policy": policy, "budget": budget, **figures})
        validated = json.loads((results / "validate.json").read_text())
        text = (self.folder / "prompt.txt")
        digest = hashlib.sha256(text.read_bytes()).hexdigest()[:16] if text.exists() else ""
        write_csv(self.folder / "prompt.csv", SUMMARY,
                  [{"model": model, "prompt": prompt.name, "kind": prompt.kind, "source": prompt.source,
                    "tokens": validated["prompt_len"], "nll": f"{validated['nll']:.4f}", "sha256": digest}])
        write_csv(self.folder / "cases.csv", MEASURED, rows)
        print(f"{self.folder}: sums {time.monotonic() - began:.0f} s; {len(rows)} cases in all "
              f"{time.monotonic() - self.began:.0f} s", flush=True)


def named(policy, budget):
    """A division of the budget is named as in budgets.csv."""
    if policy.startswith("snapkv_"):
        _, method, budget = policy.split("_", 2)
        return f"snapkv~{method}", budget
    return policy, budget


def read_cases(results):
    """What was replayed of the whole model on the decoding steps, and what was true of it, by a case's keys."""
    keys = ("policy", "semantics", "phase", "budget", "kept")
    cases = {}
    for name, wanted, prefix in (("evictions.csv", REPLAYED, ""), ("validate.csv", TRUE, "true_")):
        for row in read(results / name):
            whole = not row.get("layer") and not row.get("kv_head")
            if whole and row.get("rows", "future") == "future" and row["metric"] in wanted:
                case = cases.setdefault(tuple(row[key] for key in keys), {})
                case[prefix + row["metric"]] = shorter(row["value"])
    return cases


def layers_of(model, prompt, folder):
    """What every layer costs that is changed alone, and what the replay says of it."""
    rows = {}
    for row in read(folder / "validate.csv") + read(folder / "validate_layers.csv") + read(folder / "evictions.csv"):
        case = row["policy"], row["budget"]
        if row["metric"] == "kl" and "layer" not in row:
            rows[case] = {"whole": row["value"]}
        elif row["metric"] == "kl":
            rows[case].setdefault(row["layer"], {})["kl"] = shorter(row["value"])
        elif row["metric"] in LAYER_FIGURES and row["rows"] == "future" and row["layer"] and not row["kv_head"]:
            rows[case].setdefault(row["layer"], {})[row["metric"]] = shorter(row["value"])
    return [{"model": model, "prompt": prompt.name, "policy": policy, "budget": budget, "layer": layer,
             "whole_kl": shorter(found["whole"]), **found[layer]}
            for (policy, budget), found in rows.items() for layer in found if layer != "whole"]


def shorter(value):
    return "" if value == "" else f"{float(value):.5g}"


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path, columns, rows) -> None:
    new = path.with_suffix(".new")
    with open(new, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        table.writeheader()
        table.writerows(rows)
    os.replace(new, path)


def gather(work, out) -> None:
    """One table of all prompts that are done, with the figures of their sums."""
    out.mkdir(parents=True, exist_ok=True)
    columns = {"cases.csv": (*MEASURED, *FIGURES), "retrieval.csv": (*MEASURED, *FIGURES), "prompts.csv": SUMMARY,
               "layers.csv": LAYERS, "second_order.csv": SECOND_ORDER}
    found = {name: [] for name in columns}
    for path in sorted(work.glob("*/*/cases.csv")):
        rows = [{name: row[name] for name in MEASURED} for row in read(path)]
        with np.load(path.parent / "sums.npz") as sums:
            figures = figures_of(sums["steps"], sums["layers"])
        for i, row in enumerate(rows):
            row.update({name: f"{values[i]:.5g}" for name, values in figures.items()})
        (prompt,) = read(path.parent / "prompt.csv")
        found["retrieval.csv" if prompt["kind"].startswith(COPIED) else "cases.csv"] += rows
        found["prompts.csv"].append(prompt)
        for name in ("layers.csv", "second_order.csv"):
            if (path.parent / name).exists():
                found[name] += read(path.parent / name)
    for name, rows in found.items():
        write_csv(out / name, columns[name], rows)
        print(f"{out / name}: {len(rows)} rows")


if __name__ == "__main__":
    sys.exit(main())


def label_panel(panel, model: str, prompts: int, shares: dict[float, str]) -> None:
    """True KL over the cache's bytes of one model, both on logarithmic axes."""
    panel.set(xscale="log", yscale="log", title=f"{model}, {prompts} prompts", xlabel="bytes, of the cache in 16 bits")
    panel.set_xticks(list(shares), list(shares.values()))
    panel.minorticks_off()
    panel.grid(color="#dddddd", linewidth=0.6)


def save_panels(figure, panels, path, columns: int, bottom: float) -> None:
    """Panels of label_panel() with one legend in `columns` below them, which takes `bottom` of the height."""
    panels[0][0].set_ylabel("true KL, nats a token")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=columns, frameon=False)
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, metadata={"Date": None})
