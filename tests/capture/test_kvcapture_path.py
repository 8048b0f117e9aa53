#!/usr/bin/env python3
"""A researcher's path in seven commands: four prompts captured, a score of one's own in NumPy, an eviction with it beside four
policies, the verdict.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_path.py [-v] [Class.test]

capture_case.py says what that needs; without KVREPLAY nothing is tested.
"""
import csv
import json
import os
import subprocess
import sys
import unittest

# First: skips where numpy, torch or transformers is missing.
from capture_case import KVREPLAY, ROOT, Case, build, main

import torch

CAPTURE = ROOT / "data" / "capture" / "kvcapture.py"

# What TOVA ranks by, in NumPy: the attention that the prompt's last query gives, summed over the query heads of a group.
OWN_SCORE = """
import json, sys
from pathlib import Path
import numpy as np

for dump in map(Path, sys.argv[2:]):
    manifest = json.loads((dump / "manifest.json").read_text())
    l, scores = manifest["prompt_len"], []
    for layer in sorted(dump.glob("layer_*")):
        q, k = (np.load(layer / f"{name}.npy").astype(np.float64) for name in "qk")
        n_kv = len(k)
        z = manifest["scale"] * np.einsum("gjd,gtd->gjt", q[:, l - 1].reshape(n_kv, -1, q.shape[2]), k[:, :l])
        a = np.exp(z - z.max(axis=-1, keepdims=True))
        scores.append((a / a.sum(axis=-1, keepdims=True)).sum(axis=1))
    np.save(Path(sys.argv[1]) / f"{dump.name}.npy", np.stack(scores))
"""


@unittest.skipUnless(KVREPLAY, "KVREPLAY is not set")
class Path(Case):
    def run_command(self, *command) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def test_seven_commands(self):
        build("llama").save_pretrained(self.folder / "model")
        (self.folder / "own.py").write_text(OWN_SCORE)
        (self.folder / "scores").mkdir()
        names, out = ("one", "two", "three", "four"), self.folder / "results"
        for seed, name in enumerate(names):
            ids = torch.randint(3, 97, (60 + 10 * seed,), generator=torch.Generator().manual_seed(seed)).tolist()
            (self.folder / f"{name}.json").write_text(json.dumps(ids))

        dumps = [self.folder / "dumps" / name for name in names]
        for name, dump in zip(names, dumps):  # commands 1 to 4
            self.run_command(sys.executable, CAPTURE, "--model", self.folder / "model", "--ids", self.folder / f"{name}.json",
                             "--decode", 12, "--out", dump)
        self.run_command(sys.executable, self.folder / "own.py", self.folder / "scores", *dumps)
        text = self.run_command(KVREPLAY, "evict", *dumps, "--out", out, "--keep", "20%,50%", "--score",
                                f"mine={self.folder}/scores/{{dump}}.npy", "--policy", "h2o,tova,snapkv,streaming,score:mine")
        self.assertRegex(text, r"(?m)^  kept 20 %: \S+ loses least of 5; ")
        self.assertRegex(text, r"(?m)^  kept 20 %, yours: score:mine loses \S+ times what \S+ loses \[.*\], \d of 4 prompts")
        text = self.run_command(KVREPLAY, "compare", out, out, "--left", "policy=score:mine", "--right", "policy=tova")
        self.assertIn("4 prompts in both: one, two, three, four", text)
        # The score is TOVA's: what it keeps, and loses, is the same.
        self.assertIn("no main figure of the model differs", text)
        for name in names:
            with open(out / name / "evictions.csv", newline="") as file:
                rows = [row for row in csv.DictReader(file) if row["metric"] == "output_error"]
            losses = {policy: [row["value"] for row in rows if row["policy"] == policy] for policy in ("tova", "score:mine")}
            self.assertEqual(losses["tova"], losses["score:mine"])
            self.assertGreater(len(losses["tova"]), 20)


if __name__ == "__main__":
    main()
