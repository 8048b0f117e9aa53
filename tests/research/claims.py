#!/usr/bin/env python3
"""Replays what papers on KV-cache compression claim on dumps, and prints what of it holds.

  claims.py [--program KVREPLAY] [--work DIR] [--model NAME=PATH ...] [--save] DUMP...
  claims.py --page

The dumps of one model are its prompts: every command runs over all of them, and the report of its results has the effects,
their intervals and the verdicts (figures/papers-claims.csv). --model names the files of a model, which is then fed what was
kept (kvvalidate.py), so that claims are also decided by what it truly loses. --save writes the effects beside this script,
in place of those of the same models; --page prints CLAIMS.md's tables from there. Standard library only.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import effects

HERE = Path(__file__).resolve().parent
VALIDATE = HERE.parents[1] / "data" / "capture" / "kvvalidate.py"
BAD_INPUT = 2


def with_scores(*policies):
    """Each policy as it is and by OBCache's scores, its options behind."""
    return [name + score + options for name, options in policies for score in ("", "+value", "+key", "+joint")]


# H2O and SnapKV as their papers run them, and as OBCache does.
PLAIN = (("h2o", ""), ("tova", ""), ("snapkv", ""))
OBCACHE = (("h2o", "[window=16,recent=16]"), ("h2o", "[window=5%,recent=5%]"), ("snapkv", "[window=16,pool=max:7]"))
CAOTE = [name + score for name, _ in PLAIN for score in ("+caote", "+fastcaote")]
MERGES = "none,mass,values,fit,cam,d2o,kvmerger,keepkv,merging_press"


class Run:
    """A command; what its report measures, and whether the model can be fed its cases."""

    def __init__(self, name, *arguments, validated=False):
        self.name, self.arguments, self.validated = name, arguments, validated


RUNS = (
    Run("tokens", "tokens", "--window", "32,all", "--reserve", "0,20"),
    Run("evict", "evict", "--policy", ",".join(with_scores(*PLAIN, *OBCACHE) + CAOTE), "--sigma", "0.8", validated=True),
    Run("blocks", "evict", "--policy", "h2o+caote,tova+caote,snapkv+caote", "--sigma", "0.8", "--phase", "blockwise:32,blockwise:128"),
    Run("budget", "budget", "--order", "snapkv,keydiff", "--sigma", "0.5,0.8", "--method", "uniform,pyramid,ada,lu,optimal", validated=True),
    Run("ada", "budget", "--order", ",".join(with_scores(*OBCACHE[-1:])), "--sigma", "0.8", "--method", "ada", validated=True),
    Run("channels", "channels", "--method", "think,iap,output"),
    Run("merging", "evict", "--policy", "snapkv,h2o", "--sigma", "0.8", "--compensate", MERGES, validated=True),
    Run("leverage", "evict", "--policy", "greedy_exact,greedy_leverage", "--sigma", "0.8", "--compensate", "fit", validated=True),
)
PAIRS = ("3:7", "5:10")  # of percent, IAP's own; its [0, 0] is no protection
PROTECTED = {pair: Run(f"protected-{pair.replace(':', '-')}", "channels", "--method", "iap", "--protect", pair) for pair in PAIRS}
PROTECTION = dict(id="iap-protect", paper="IAP", figure="3.3", claimed="ratio < 1",
                  claim="Protecting outstanding key channels makes iap's logits better for later queries")


def model_of(dump):
    """Its name up to what tells the prompt."""
    try:
        name = json.loads((dump / "manifest.json").read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"claims.py: {dump}: expected a dump that names its model, found {error!r}")
    return name.split(" / ")[0].split(" (")[0]


class Results:
    """The results of the commands on the dumps of one model."""

    def __init__(self, args, model, dumps):
        self.program, self.dumps, self.work, self.files = args.program, dumps, args.work / model, args.model.get(model)

    def run(self, run):
        """The folder; none where the dumps lack what the command needs, which it has said."""
        folder = self.work / run.name
        command = [self.program, run.arguments[0], *self.dumps, "--out", folder, "--precision", "f64", *run.arguments[1:]]
        print("   ", " ".join(str(part) for part in command), file=sys.stderr)
        done = subprocess.run([*command, "--force", "--quiet"], stdout=subprocess.DEVNULL)
        if done.returncode == BAD_INPUT:
            return None
        done.check_returncode()
        if run.validated and self.files:
            subprocess.run([sys.executable, VALIDATE, "--model", self.files, "--results", folder, "--force", "--dump", *self.dumps],
                           stdout=sys.stderr, check=True)
        return folder

    def claims(self, run):
        """The rows of a run's report, the effects by prompt with them."""
        folder = self.run(run)
        if folder is None:
            return []
        subprocess.run([self.program, "report", folder], check=True, stdout=subprocess.DEVNULL)
        table = folder / "report" / "figures" / "papers-claims.csv"
        return [self.claim(row) for row in effects.read(table)] if table.exists() else []

    def claim(self, row):
        columns = list(row)
        prompts = columns[columns.index("layers") + 1:]
        found = {name: row[column] for name, column in zip(self.prompts, prompts, strict=True) if row[column]}
        return {**row, "by_prompt": {name: float(value) for name, value in found.items()}}

    @property
    def prompts(self):
        return [dump.name for dump in self.dumps]

    def protection(self):
        """IAP 3.3, which is between two runs."""
        claims = {}
        for pair, run in PROTECTED.items():
            folder = self.run(run)
            if folder is None:
                return []
            rows = "future" if any(row["rows"] == "future" for _, row in self.channels(folder)) else "window"
            plain, kept = (self.errors(self.work / "channels", rows), self.errors(folder, rows))
            for (prompt, ratio), error in kept.items():
                setting = (f"iap, {pair.replace(':', ' to ')} % protected / iap, pruned {100 * float(ratio):g} %, "
                           f"relative_reconstruction_error, {effects.ROWS[rows]}")
                claims.setdefault(setting, {})[prompt] = error / plain[prompt, ratio]
        return [{**PROTECTION, "setting": setting, "layers": "", "by_prompt": found} for setting, found in claims.items()]

    def channels(self, folder):
        for prompt in self.prompts:
            table = folder / prompt / "channels.csv"
            for row in effects.read(table if table.exists() else folder / "channels.csv"):
                yield prompt, row

    def errors(self, folder, rows):
        """Of the whole model, by prompt and ratio."""
        return {(prompt, row["ratio"]): float(row["value"]) for prompt, row in self.channels(folder)
                if (row["layer"], row["method"], row["metric"], row["rows"]) == ("", "iap", "relative_reconstruction_error", rows)}


def check(row):
    """The report and effects.py say the same of the effects."""
    own = effects.Summary(row["claimed"], list(row["by_prompt"].values()))
    for name in ("effect", "low", "high"):
        said = float(row[name]) if row[name] else math.nan
        if not effects.same(said, getattr(own, name)):
            sys.exit(f"claims.py: {row['id']}, {row['setting']}: the report's {name} is {said}, of its effects it would be {getattr(own, name)}")
    if row["verdict"] != own.verdict:
        sys.exit(f"claims.py: {row['id']}, {row['setting']}: the report says '{row['verdict']}', of its effects it would be '{own.verdict}'")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("dumps", nargs="*", type=Path, metavar="DUMP")
    add("--program", default="build/release/bin/kvreplay")
    add("--work", type=Path, default=Path("results/claims"))
    add("--model", action="append", default=[], metavar="NAME=PATH", help="the files of a model, by its name in the dumps")
    add("--save", action="store_true", help="write the effects beside this script")
    add("--page", action="store_true", help="print the tables of what was saved")
    args = parser.parse_args()
    args.model = dict(model.split("=", 1) for model in args.model)
    if args.page:
        print(effects.page(HERE))
        return
    models = {}
    for dump in args.dumps:
        models.setdefault(model_of(dump), []).append(dump)
    sentences, found = {}, []
    for model, dumps in models.items():
        results = Results(args, model, dumps)
        rows = [row for run in RUNS for row in results.claims(run)]
        for row in rows:
            check(row)
        for row in rows + results.protection():
            sentences[row["id"]] = {name: row[name] for name in effects.SENTENCE}
            found += [dict(model=model, prompt=prompt, id=row["id"], setting=row["setting"], effect=repr(effect))
                      for prompt, effect in row["by_prompt"].items()]
    print(effects.tables(sentences, found))
    if args.save:
        effects.save(HERE, sentences, found)


if __name__ == "__main__":
    main()
