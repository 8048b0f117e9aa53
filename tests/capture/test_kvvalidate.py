#!/usr/bin/env python3
"""kvvalidate on real result folders of a small random model: what it writes, resumes and refuses.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvvalidate.py [-v] [Class.test]

capture_case.py says what that needs; without KVREPLAY nothing is tested (exit status 77).
"""

import csv
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, KVREPLAY, MODEL, PROMPT, SAMPLE, build, decode, prompt, said

import numpy as np
import torch
import transformers

import kvvalidate
from kvcapture import capture
import key_means
from kvresults import open_results
from changed_cache import Change
from number_formats import Stored, kivi
from model_loop import FIGURES, ModelLoop, figures, figures_of_steps
from plain_loop import H2O, TOVA, chunks_of, evicting, writing
from test_model_loop import read_back

ROW_KEYS = ["policy", "semantics", "phase", "budget", "kept"]
KEYS = [*ROW_KEYS, "protocol"]


def rows(folder, name="validate.csv"):
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figures_in(folder, **keys):
    """The figures of one case."""
    chosen = [row for row in rows(folder) if all(row[key] == value for key, value in keys.items())]
    return {row["metric"]: float(row["value"]) for row in chosen}


@unittest.skipUnless(KVREPLAY, "KVREPLAY names no kvreplay")
class Validate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="kvvalidate-")
        cls.addClassCleanup(place.cleanup)
        cls.made = Path(place.name)
        cls.model, cls.ids = build("llama"), {}
        cls.model.save_pretrained(cls.made / "model")
        for name, other in (("a", 0), ("b", 1), ("c", 2)):
            ids = prompt()
            ids[0, 5] += other
            with capture(cls.model, cls.made / name, prompt_len=PROMPT, decode=DECODE):
                decode(cls.model, ids)
            cls.ids[name] = json.loads((cls.made / name / "tokens.json").read_text())["ids"]
        half = np.arange(3 * 2 * PROMPT).reshape(3, 2, PROMPT) % 3 != 1
        np.save(cls.made / "all.npy", np.ones_like(half))
        np.save(cls.made / "some.npy", half)
        if key_means.main([str(cls.made / "b"), "--out", str(cls.made / "means.npy"), "--first", "2"]):
            raise AssertionError("key_means")
        for name, line in {
            "evict": "evict a --policy h2o,snapkv[window=8,pool=3] --budget 12,25 --window 8 "
            "--phase prefill,blockwise:10,decode,decode:3 "
            "--kept every=all.npy --kept some=some.npy",
            "read": "evict a --policy h2o,quest[page=4],sparq,top_p --budget 12 --window 8",
            "heads": "evict a --policy h2o --budget 12 --semantics official --per-query-head --window 8",
            "formats": "evict a --policy h2o --budget 30 --window 8 --bits 'k4v2;0:8',ktq3v16 --rotate none,v --group 4 --residual 6",
            "bits": "evict a --policy none,h2o --budget 30 --window 8 --bits 4 --group 4 --residual 6",
            "written": "evict a --policy none,h2o --budget 30 --window 8 --bits 4,k16v8 --keys token --group 16 --residual 0 --center none,k:2,means.npy",
            "both": "evict a --policy none,h2o --budget 30 --channels think:0.5 --protect 10:20 --recent 6 "
            "--bits 4 --group 4 --residual 6 --window 8",
            "grown": "evict a --policy h2o,tova --budget 12 --phase blockwise:10,decode,decode:3,append-only",
            "grown heads": "evict a --policy tova+caote --sigma 0.5 --phase blockwise:16,decode --per-query-head",
            "budget": "budget a --order keydiff --method uniform,lu --sigma 0.5",
            "channels": "channels a --method think,iap --ratio 0.5 --recent 6 --window 8",
            "official": "channels a --method think --ratio 0.4 --recent 6 --window 8 --semantics official",
            "layer": "evict a --policy h2o --budget 12 --layers 1",
            "three": "budget a b c --order keydiff --method lu --sigma 0.5",
        }.items():
            cls.kvreplay(*line.split(), "--out", name, "--backend", "cpu")

    @classmethod
    def kvreplay(cls, *arguments, place=None):
        done = subprocess.run(
            [KVREPLAY, *map(str, arguments), "--quiet"], cwd=place or cls.made, capture_output=True, text=True
        )
        if done.returncode:
            raise AssertionError(done.stderr)

    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="kvvalidate-"))
        self.addCleanup(lambda: shutil.rmtree(self.work))

    def results(self, name):
        """A copy, which a test may write to."""
        return Path(shutil.copytree(self.made / name, self.work / name))

    def validate(self, folder, *more, dump="a", model="model"):
        return said(
            kvvalidate.main,
            [
                "--model",
                str(self.made / model),
                "--results",
                str(folder),
                *(["--dump", str(self.made / dump)] if dump else []),
                *more,
            ],
        )

    def done(self, folder, *more, **named):
        status, text = self.validate(folder, *more, **named)
        self.assertEqual(status, 0, text)
        return text

    def refused(self, pattern, folder, *more, **named):
        status, text = self.validate(folder, *more, **named)
        text = re.sub(r"^reading model.*\n", "", text)
        self.assertEqual(status, 2, text)
        self.assertRegex(text, pattern)
        self.assertEqual(text.count("\n"), 1, text)
        self.assertTrue(text.startswith("kvvalidate: "))

    def in_the_loop(self, change_of, dump="a"):
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids[dump], PROMPT)
            return figures(
                full, loop.feed({layer: change_of(layer) for layer in range(3)}), self.ids[dump][PROMPT + 1 :]
            )

    def last_rows(self, folder, name):
        return lambda layer: Change(last=np.load(folder / f"layer_{layer:02}" / "last_rows" / f"{name}.npy"))

    def kept(self, folder, name):
        return lambda layer: Change(kept=np.load(folder / f"layer_{layer:02}" / "kept" / f"{name}.npy"))

    def test_kept_sets(self):
        folder = self.results("evict")
        text = self.done(folder)
        found = rows(folder)
        self.assertEqual(list(found[0]), [*KEYS, "metric", "value"])
        cases = list(dict.fromkeys(tuple(row[key] for key in KEYS) for row in found))
        self.assertEqual(len(cases), 2 * 2 * 4 + 2)
        self.assertEqual([row["metric"] for row in found], [*FIGURES] * len(cases))
        tables = {(*(row[key] for key in ROW_KEYS), "stored") for row in rows(folder, "evictions.csv")}
        self.assertLessEqual(set(cases), tables)  # keys as evictions.csv has them
        name = "snapkv[window=8,pool=3]"
        self.assertEqual(
            figures_in(folder, policy=name, phase="blockwise:10", budget="25"),
            self.in_the_loop(self.kept(folder, f"{name}-paper-blockwise_10-25")),
        )
        self.assertEqual(
            figures_in(folder, policy="some"),
            self.in_the_loop(lambda layer: Change(np.load(self.made / "some.npy")[layer])),
        )
        every = figures_in(folder, policy="every")
        self.assertAlmostEqual(every.pop("accept"), 1.0, places=6)
        self.assertAlmostEqual(every.pop("perplexity"), np.exp(json.loads((folder / "validate.json").read_text())["nll"]), places=5)
        self.assertEqual(every, {**dict.fromkeys(("kl", "kl_median", "kl_p95", "dnll"), 0.0), "same_top1": 1.0})
        for phase in ("decode", "decode:3"):
            decoded = figures_in(folder, policy="h2o", phase=phase, budget="12")
            self.assertEqual(decoded, self.in_the_loop(self.last_rows(folder, f"h2o-paper-{phase.replace(':', '_')}-12")))
            self.assertNotEqual(decoded, figures_in(folder, policy="h2o", phase="prefill", budget="12"))
        self.assertNotIn("left out", text)
        results = open_results(folder)
        self.assertEqual(list(results.last_rows("h2o-paper-decode-12").axes), ["layer", "kv_head", "position"])
        held = np.asarray(results.last_rows("h2o-paper-decode-12"))[..., :PROMPT] == PROMPT + DECODE
        self.assertTrue(np.array_equal(held, np.asarray(results.kept("h2o-paper-decode-12"))))
        how = json.loads((folder / "validate.json").read_text())
        self.assertEqual(
            (how["model"], how["compute"], how["prompt_len"], how["steps"], how["finished"]),
            ("model", "float32", PROMPT, DECODE, True),
        )
        self.assertEqual(how["results"], json.loads((folder / "summary.json").read_text())["files_xxh3"])
        with ModelLoop(self.model) as loop:
            logp = loop.read(self.ids["a"], PROMPT).double().log_softmax(-1)
        self.assertAlmostEqual(
            how["nll"], -np.mean([logp[i, self.ids["a"][PROMPT + 1 + i]] for i in range(DECODE - 1)])
        )

    def test_policies_that_keep_all_and_read_less(self):
        folder = self.results("read")
        text = self.done(folder)
        self.assertNotIn("left out", text)
        results, kl = open_results(folder), open_results(folder).kl_by_step()
        for name in ("quest[page=4]", "sparq", "top_p"):
            read = results.read(f"{name}-paper-prefill-12")
            self.assertEqual(list(read.axes), ["layer", "kv_head", "step", "token"])
            self.assertEqual((read.shape, read.dtype), ((3, 2, DECODE, PROMPT), bool))
            count = np.asarray(read).sum(-1)
            if name == "top_p":
                self.assertLessEqual(count.mean(), 12)
            else:
                self.assertTrue(np.all(count == 12))
            self.assertTrue(np.asarray(results.kept(f"{name}-paper-prefill-12")).all())
            found = figures_in(folder, policy=name)
            self.assertEqual(found, self.in_the_loop(lambda layer: Change(read=np.asarray(read)[layer])))
            self.assertGreater(found["kl"], 0)
            # Its first step is one over a cache that holds what it reads.
            case, first = (name, "paper", "prefill", "12", "12", "stored"), np.asarray(read)[:, :, 0]
            with ModelLoop(self.model) as loop:
                full = loop.read(self.ids["a"], PROMPT)
                fed = loop.feed({layer: Change(kept=first[layer]) for layer in range(3)})
            self.assertAlmostEqual(kl[case][0], figures_of_steps(full, fed)[0][0], delta=1e-6)

    def test_a_cache_for_every_query_head(self):
        folder = self.results("heads")
        self.done(folder)
        self.assertEqual(
            figures_in(folder, policy="h2o"), self.in_the_loop(self.kept(folder, "h2o-official-prefill-12"))
        )
        self.assertEqual(np.load(folder / "layer_00/kept/h2o-official-prefill-12.npy").shape, (4, PROMPT))

    def test_quantized_caches(self):
        folder = self.results("bits")
        self.done(folder)
        for name, file in (("none", "none-paper-prefill-40"), ("h2o", "h2o-paper-prefill-30")):
            kept = self.kept(folder, file)
            expected = self.in_the_loop(lambda layer: Change(kept(layer).kept, stored=kivi(4, 4, 6)))
            self.assertEqual(figures_in(folder, policy=name), expected)
            self.assertGreater(expected["kl"], 0)

    def test_formats_of_layers(self):
        folder = self.results("formats")
        self.done(folder)
        for name, of_layer in (
            ("k4v2;0:8", lambda layer: Stored("8", "8") if layer == 0 else Stored("4", "2")),
            ("k4v2;0:8+v", lambda layer: Stored("8", "8", turned=(0, 16)) if layer == 0 else Stored("4", "2", turned=(0, 16))),
            ("ktq3v16", lambda layer: Stored("tq3", "16", keys="token")),
        ):
            kept = self.kept(folder, f"h2o~{name}-paper-prefill-30".replace(":", "_"))
            expected = self.in_the_loop(
                lambda layer: Change(kept(layer).kept, stored=of_layer(layer)._replace(group=4, residual=6)))
            self.assertEqual(figures_in(folder, policy=f"h2o~{name}"), expected)
            self.assertGreater(expected["kl"], 0)

    def test_pruned_and_quantized_kept_sets(self):
        folder = self.results("both")
        self.done(folder)
        for name, file in (("none", "none-paper-prefill-40"), ("h2o", "h2o-paper-prefill-30")):
            kept, pruned = self.kept(folder, file), lambda layer: np.load(folder / f"layer_{layer:02}/pruned/{file}.npy")
            self.assertEqual(pruned(0).sum(axis=1).tolist(), [8, 8])
            self.assertEqual(list(open_results(folder).pruned(file).axes), ["layer", "kv_head", "channel"])
            expected = self.in_the_loop(
                lambda layer: Change(kept(layer).kept, pruned=pruned(layer), recent=6, stored=kivi(4, 4, 6))
            )
            self.assertEqual(figures_in(folder, policy=name), expected)
            self.assertNotEqual(expected, self.in_the_loop(lambda layer: Change(kept(layer).kept, pruned=pruned(layer), recent=6)))

    def test_results_and_dumps_with_byte_order_marks(self):
        folder, dump = self.results("layer"), Path(shutil.copytree(self.made / "a", self.work / "a"))
        for path in (dump / "manifest.json", dump / "tokens.json"):
            path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
        self.done(folder, dump=dump)
        for path in (folder / "validate.json", folder / "validate.csv"):
            path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
        self.done(folder, "--resume", dump=dump)
        self.assertEqual(open_results(self.made / "layer", dump=dump).summary["dump"]["T"], PROMPT + DECODE)

    def of_model(self, name, *policies, **changes):
        """Results of its own model, and what validates them."""
        model = build(name, **changes)
        model.save_pretrained(self.work / "model")
        with capture(model, self.work / "dump", prompt_len=PROMPT, decode=DECODE):
            decode(model, prompt())
        self.kvreplay("evict", "dump", "--policy", ",".join(policies), "--budget", "12", "--backend", "cpu", "--out", "results",
                      place=self.work)
        return self.work / "results", {"model": self.work / "model", "dump": self.work / "dump"}

    def test_models_that_make_a_view_of_the_attention(self):
        for name in ("afmoe (gated)", "qwen 2", "gpt 2", "modernbert decoder", "granite", "bitnet (norms its heads)"):
            with self.subTest(name):
                folder, named = self.of_model(name, "h2o", "tova")
                self.done(folder, **named)
                self.assertEqual({row["policy"] for row in rows(folder)}, {"h2o", "tova"})
            for path in (self.work / "model", self.work / "dump", folder):
                shutil.rmtree(path)

    def test_layers_that_read_one_cache(self):
        folder, named = self.of_model("gemma 3n (shared caches)", "h2o", "streaming", num_kv_shared_layers=2)
        text = self.done(folder, "--each-layer", **named)
        self.assertEqual({row["policy"] for row in rows(folder)}, {"h2o", "streaming"})
        self.assertNotIn("left out", text)
        for name in ("h2o", "streaming"):
            of_layer = [np.load(folder / f"layer_{layer:02}/kept/{name}-paper-prefill-12.npy") for layer in range(4)]
            self.assertTrue((of_layer[0] == of_layer[2]).all() and (of_layer[1] == of_layer[3]).all())
        kl = {row["layer"]: row["value"] for row in rows(folder, "validate_layers.csv") if row["metric"] == "kl"}
        self.assertEqual((kl["0"], kl["1"]), (kl["2"], kl["3"]))  # changed together
        # Results that were made as if the layers had caches of their own.
        self.kvreplay("evict", "dump", "--policy", "h2o", "--budget", "12", "--backend", "cpu", "--out", "h2o", place=self.work)
        path = self.work / "h2o/layer_02/kept/h2o-paper-prefill-12.npy"
        np.save(path, np.load(path)[:, ::-1])
        (self.work / "h2o/files.csv").unlink()
        self.refused("layers [01] and [23] read one cache and keep other tokens", self.work / "h2o", **named)

    def test_the_kl_of_every_step(self):
        folder = self.results("evict")
        text = self.done(folder)
        kl = np.load(folder / "validate_steps.npy")
        cases = list(dict.fromkeys(tuple(row[key] for key in KEYS) for row in rows(folder)))
        self.assertEqual(kl.shape, (len(cases), DECODE))
        for case, steps in zip(cases, kl):
            self.assertAlmostEqual(figures_in(folder, **dict(zip(KEYS, case)))["kl"], steps.mean(), places=12)
        self.assertEqual(list(open_results(folder).kl_by_step()), cases)
        shares = np.mean([steps / steps.sum() for case, steps in zip(cases, kl) if case[0] != "every"], axis=0)
        found = json.loads((folder / "validate.json").read_text())["costliest"]
        self.assertEqual(found["cases"], len(cases) - 1)  # one keeps everything
        named = [one["step"] for one in found["steps"]]
        self.assertEqual(named, np.argsort(-shares)[: len(named)].tolist())
        held = [one["share"] for one in found["steps"]]
        self.assertAlmostEqual(sum(held), shares[named].sum(), places=12)
        self.assertTrue(sum(held[:-1]) < 0.5 <= sum(held))
        self.assertEqual(found["steps"][0]["token"], self.ids["a"][PROMPT + named[0]])
        self.assertRegex(text, rf"{len(named)} of {DECODE} steps hold [0-9]+% of the KL .mean share of {len(cases) - 1} cases.: ")

    def test_results_that_do_not_say_when_tokens_leave(self):
        folder = self.results("evict")
        files = (folder / "files.csv").read_text().splitlines(keepends=True)
        (folder / "files.csv").write_text("".join(line for line in files if "last_rows" not in line))
        self.assertIn("left out: h2o-paper-decode-12: these results do not say when tokens leave", self.done(folder))

    @unittest.skipUnless(importlib.util.find_spec("kvreplay"), "kvreplay is not there to be imported")
    def test_feedback_equals_a_plain_loop_that_really_evicts(self):
        folder = self.results("grown")
        text = self.done(folder, "--feedback", "--policy", "h2o", "tova")
        self.assertIn("decode+feedback", text)
        eager = build("llama, eager")
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids["a"], PROMPT)
        T = PROMPT + DECODE
        for policy, plain in (("h2o", H2O), ("tova", TOVA)):
            for phase in ("decode", "blockwise:10"):
                with self.subTest(policy, phase=phase):
                    rule = plain(12, PROMPT, phase != "decode")
                    logits = evicting(eager, self.ids["a"], chunks_of(phase, PROMPT, T), rule)[PROMPT:]
                    expected = figures(full, logits, self.ids["a"][PROMPT + 1 :])
                    found = figures_in(folder, policy=policy, phase=f"{phase}+feedback")
                    self.assertGreater(expected["kl"], 1e-2)
                    for name, value in expected.items():
                        self.assertAlmostEqual(found[name], value, delta=1e-4 * max(abs(value), expected["kl"]))
                    self.assertNotEqual(found["kl"], figures_in(folder, policy=policy, phase=phase)["kl"])

    def test_written_equals_a_plain_loop_whose_cache_quantizes(self):
        folder = self.results("written")
        text = self.done(folder, "--written")
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids["a"], PROMPT)
            means = {i: layer.k[:, 2:].double().mean(1).numpy() for i, layer in loop.layers.items()}
            loop.read(self.ids["b"], PROMPT)
            others = {i: layer.k[:, 2:].double().mean(1).numpy() for i, layer in loop.layers.items()}
        for layer, other in others.items():
            np.testing.assert_allclose(np.load(self.made / "means.npy")[layer], other, atol=1e-5)
        for name, k_bits, v_bits, centers in (("4", 4, 4, None), ("4+center:2", 4, 4, means), ("4+center:means", 4, 4, others),
                                              ("k16v8", 16, 8, None)):
            def quantized(layer, head, x, is_key):
                bits, around = (k_bits, centers[layer][head] if centers else 0) if is_key else (v_bits, 0)
                return x if bits == 16 else read_back(x - around, bits) + around

            with self.subTest(name):
                expected = figures(full, writing(self.model, self.ids["a"], quantized)[PROMPT:], self.ids["a"][PROMPT + 1 :])
                found = figures_in(folder, policy=f"none~{name}", protocol="written")
                self.assertGreater(expected["kl"], 1e-7)
                for figure, value in expected.items():
                    self.assertAlmostEqual(found[figure], value, delta=1e-3 * max(abs(value), expected["kl"]))
                self.assertNotEqual(found["kl"], figures_in(folder, policy=f"none~{name}", protocol="stored")["kl"])
        self.assertEqual({row["policy"] for row in rows(folder) if row["protocol"] == "written"}, {row["policy"] for row in rows(folder) if row["policy"].startswith("none~")})
        self.assertEqual({row["phase"] for row in rows(folder)}, {"prefill"})
        self.assertRegex(text, r"none~4 paper prefill written +[0-9]")
        self.assertEqual(list(open_results(folder).kl_by_step()), list(dict.fromkeys(tuple(row[key] for key in KEYS) for row in rows(folder))))

    def test_a_folder_from_before_there_were_protocols_is_stored(self):
        folder = self.results("bits")
        self.done(folder)
        text = (folder / "validate.csv").read_text()
        older = "".join(",".join(line.split(",")[:5] + line.split(",")[6:]) for line in text.splitlines(keepends=True))
        (folder / "validate.csv").write_text(older)
        now = open_results(folder).kl_by_step()
        self.assertTrue(now and all(keys[5] == "stored" for keys in now))
        self.done(folder, "--resume")  # finds all cases, and writes the column
        self.assertEqual((folder / "validate.csv").read_text(), text)

    def test_what_is_not_written_token_by_token_is_left_out(self):
        self.refused("expected with --written the policy none in a format that is stored token by token", self.results("evict"), "--written")
        folder = self.results("bits")
        status, text = self.validate(folder, "--written")
        self.assertEqual(status, 2)
        self.assertIn("stored token by token", text)

    @unittest.skipUnless(importlib.util.find_spec("kvreplay"), "kvreplay is not there to be imported")
    def test_feedback_of_a_cache_for_every_query_head(self):
        folder = self.results("grown heads")
        self.done(folder, "--feedback", "--each-layer")
        phases = {row["phase"] for row in rows(folder)}
        self.assertEqual(phases, {"blockwise:16", "blockwise:16+feedback", "decode", "decode+feedback"})
        for row in rows(folder, "validate_layers.csv"):  # before the first layer nothing feeds back, but what a block reads
            if row["phase"] == "decode+feedback" and row["layer"] == "2":
                mine = {**row, "phase": "decode"}
                alone = [r for r in rows(folder, "validate_layers.csv") if {**r, "value": ""} == {**mine, "value": ""}]
                self.assertAlmostEqual(float(alone[0]["value"]), float(row["value"]), places=5)

    def test_feedback_is_refused_without_what_it_needs(self):
        with mock.patch.object(importlib.util, "find_spec", lambda name: name):
            wanted = "expected with --feedback a phase blockwise:N, decode, decode:N or append-only, found none"
            self.refused(wanted, self.results("bits"), "--feedback")
        found = importlib.util.find_spec
        with mock.patch.object(importlib.util, "find_spec", lambda name: None if name == "kvreplay" else found(name)):
            self.refused("--feedback: expected the package kvreplay .*, found none", self.results("grown"), "--feedback")

    def test_head_budgets(self):
        folder = self.results("budget")
        self.done(folder)
        case = dict(policy="keydiff~lu", semantics="paper", phase="prefill", budget="0.5", kept="")
        self.assertEqual(figures_in(folder, **case), self.in_the_loop(self.kept(folder, "keydiff-lu-0.5")))

    def test_channels(self):
        for name, method, ratio in (("channels", "iap", "0.5"), ("official", "think", "0.4")):
            folder = self.results(name)
            self.done(folder)
            pruned = lambda layer: np.load(folder / f"layer_{layer:02}/channels/{method}-{ratio}.npy")
            found = figures_in(folder, policy=f"channels:{method}", budget=ratio, kept="40")
            self.assertEqual(found, self.in_the_loop(lambda layer: Change(pruned=pruned(layer), recent=6)))
            self.assertGreater(found["kl"], 0)
        self.assertEqual(pruned(0).shape, (4, 16))

    def test_results_of_some_layers_leave_the_others_as_they_are(self):
        folder = self.results("layer")
        self.done(folder)
        kept = self.kept(folder, "h2o-paper-prefill-12")
        self.assertEqual(
            figures_in(folder, policy="h2o"), self.in_the_loop(lambda layer: kept(layer) if layer == 1 else Change())
        )

    def test_one_layer_alone(self):
        folder = self.results("evict")
        self.done(folder, "--each-layer", "--policy", "h2o", "some")
        found = rows(folder, "validate_layers.csv")
        self.assertEqual(list(found[0]), ["layer", *KEYS, "metric", "value"])
        self.assertEqual({row["policy"] for row in found + rows(folder)}, {"h2o", "some"})
        kept = np.load(self.made / "some.npy")
        for layer in range(3):
            mine = {
                row["metric"]: float(row["value"])
                for row in found
                if (row["layer"], row["policy"]) == (str(layer), "some")
            }
            self.assertEqual(mine, self.in_the_loop(lambda at: Change(kept[at]) if at == layer else Change()))

    def test_several_dumps_and_what_was_left_one_out(self):
        folder = self.results("three")
        self.done(folder, dump=None)
        for name in "abc":
            for where, method in ((folder / name, "lu"), (folder / "leave_one_out" / name, "profile")):
                expected = self.in_the_loop(self.kept(where, f"keydiff-{method}-0.5"), dump=name)
                self.assertEqual(figures_in(where, policy=f"keydiff~{method}"), expected)
        shutil.rmtree(folder)
        folder = self.results("three")
        self.done(
            folder, "--dump", str(self.made / "c"), str(self.made / "a"), dump=None
        )  # told apart by what they hold
        self.assertTrue((folder / "c/validate.csv").exists() and not (folder / "b/validate.csv").exists())
        self.assertEqual(
            figures_in(folder / "c"), self.in_the_loop(self.kept(folder / "c", "keydiff-lu-0.5"), dump="c")
        )

    def test_several_results_are_as_each_alone(self):
        alone = {}
        for name in ("read", "bits"):
            self.done(self.results(name))
            alone[name] = rows(self.work / name)
            shutil.rmtree(self.work / name)
        both = [str(self.results(name)) for name in alone]
        self.done(both[0], "--results", *both)
        for name, found in alone.items():
            self.assertEqual(rows(self.work / name), found)

    def test_resumes_what_was_cut_short(self):
        whole, folder, calls = self.results("evict"), Path(shutil.copytree(self.made / "evict", self.work / "cut")), []
        self.done(whole)
        feed = ModelLoop.feed

        def cut(loop, changes):
            calls.append(changes)
            if len(calls) == 5:  # the first is the model as it is
                raise KeyboardInterrupt
            return feed(loop, changes)

        with mock.patch.object(ModelLoop, "feed", cut):
            status, text = self.validate(folder)
        self.assertEqual((status, text.split("\n", 1)[1]), (130, "kvvalidate: interrupted; --resume goes on\n"))
        self.assertEqual(len(rows(folder)), 3 * len(FIGURES))  # the cases that were finished, readable
        self.assertFalse(json.loads((folder / "validate.json").read_text())["finished"])
        self.refused(
            r"cut: expected no validation \(--resume finishes one, --force replaces it\), found validate.json", folder
        )
        text = (folder / "validate.csv").read_text()
        (folder / "validate.csv").write_text(
            text + text.splitlines()[-5].replace("h2o", "other") + "\n"
        )  # a case without all figures
        calls[:] = [None] * 10
        with mock.patch.object(ModelLoop, "feed", cut):
            self.done(folder, "--resume")
        self.assertEqual(len(calls) - 10, 1 + 18 - 3)
        for name in ("validate.csv", "validate.json", "validate_steps.npy"):
            self.assertEqual((folder / name).read_bytes(), (whole / name).read_bytes())
        self.done(folder, "--resume")  # nothing is left to do
        self.done(folder, "--force", "--policy", "every")
        self.assertEqual(len(rows(folder)), len(FIGURES))
        self.assertEqual([path.name for path in folder.glob("*.new")] + [path.name for path in folder.glob(".*")], [])

    def test_a_resumption_that_does_not_fit_is_refused(self):
        folder = self.results("bits")
        self.done(folder)
        self.refused(
            "cannot resume .*: compute: expected float32, found float64", folder, "--resume", "--compute", "float64"
        )
        self.refused("cannot resume .*: each_layer: expected False, found True", folder, "--resume", "--each-layer")
        how = json.loads((folder / "validate.json").read_text())
        for change, pattern in (
            ({"results": "0" * 16}, "results: expected 0000"),
            ({"nll": how["nll"] + 0.01}, "nll: expected "),
            ({"steps": None}, "steps: expected None, found 6"),
        ):
            (folder / "validate.json").write_text(json.dumps({**how, **change}))
            self.refused(f"cannot resume .*: {pattern}", folder, "--resume")
        (folder / "validate.json").write_text("{}")
        self.refused("expected a validation to resume, found a damaged one .*--force begins anew", folder, "--resume")
        (folder / "validate.json").write_text(json.dumps(how))
        (folder / "validate.csv").write_text("policy,value\n")
        self.refused("found a damaged one .*policy,value", folder, "--resume")

    def test_what_does_not_belong_together_is_refused(self):
        folder = self.results("evict")
        self.refused(
            r"b: layer 0: expected the dump that .* is of \(XXH3 [0-9a-f]{16}\), found another", folder, dump="b"
        )
        self.refused("nowhere: expected a dump, as a folder .*, found none", folder, dump="nowhere")
        several = self.results("three")
        other = Path(shutil.copytree(self.made / "b", self.work / "other"))
        values = np.load(other / "layer_02/v.npy")
        values[0, 0, 0] += 1
        np.save(other / "layer_02/v.npy", values)
        self.refused(
            "other: expected one of the dumps that .* is of, found another", several, "--dump", str(other), dump=None
        )
        self.refused("--policy nothing: expected some of .*h2o.*, found none", folder, "--policy", "nothing")
        kept = folder / "layer_01/kept/h2o-paper-prefill-12.npy"
        kept.write_bytes(kept.read_bytes()[:-1] + b"\2")
        self.refused("h2o-paper-prefill-12.npy: expected the .* bytes that were written", folder, "--policy", "h2o")
        (folder / "summary.json").unlink()
        self.refused("no summary.json", folder)

    def test_another_model_is_refused(self):
        folder = self.results("evict")
        other = build("llama")
        with torch.no_grad():
            for weight in other.parameters():
                weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        other.save_pretrained(self.made / "other")
        self.refused(
            "the model's keys of layer [012]: expected those of .*, found a difference of .*another model",
            folder,
            model="other",
        )
        build("llama", num_hidden_layers=4).save_pretrained(self.made / "deeper")
        self.refused(
            "the model's keys of layer 0: expected those of ", folder, model="deeper"
        )  # it may have layers that were not captured
        dump = Path(shutil.copytree(self.made / "a", self.work / "a"))
        manifest = json.loads((dump / "manifest.json").read_text())
        (dump / "manifest.json").write_text(json.dumps({**manifest, "layers": None}))
        self.refused(
            "a: layers: expected those of the model's 4, found 3 of the dump", folder, model="deeper", dump=dump
        )
        build("llama", num_key_value_heads=4).save_pretrained(self.made / "wider")
        self.refused(
            r"layer 0: n_q, n_kv, d, d_v: expected the dump's \(4, 2, 16, 16\), found \(4, 4, 16, 16\)",
            folder,
            model="wider",
        )
        self.refused("kvvalidate: ", folder, model="nowhere")
        self.assertFalse((folder / "validate.csv").exists())

    def test_a_dump_without_its_tokens_is_refused(self):
        folder, dump = self.results("evict"), Path(shutil.copytree(self.made / "a", self.work / "a"))
        tokens = json.loads((dump / "tokens.json").read_text())
        for ids, pattern in (
            (tokens["ids"][:-1], "expected the 46 tokens of the dump that was analysed, found 45"),
            (
                [97, *tokens["ids"][1:]],
                "expected ids of 0 to 96, found 3 to 97|expected ids of 0 to 96, found [0-9]+ to 97",
            ),
            (tokens["ids"][::-1], "another model, or tokens.json of another text"),
        ):
            (dump / "tokens.json").write_text(json.dumps({"ids": ids}))
            self.refused(pattern, folder, dump=dump)
        (dump / "tokens.json").unlink()
        self.refused("tokens.json: expected the tokens that the model was fed .*, found none", folder, dump=dump)

    def test_dumps_of_some_layers_and_in_bfloat16(self):
        model = build("llama", torch.bfloat16)
        model.save_pretrained(self.made / "half")
        with capture(model, self.work / "half", prompt_len=PROMPT, decode=DECODE, layers=[0, 2]):
            decode(model, prompt())
        self.kvreplay(
            "evict", "half", "--policy", "h2o", "--budget", "12", "--out", "r", "--backend", "cpu", place=self.work
        )
        self.done(self.work / "r", model="half", dump=self.work / "half")
        kept, ids = (
            self.kept(self.work / "r", "h2o-paper-prefill-12"),
            json.loads((self.work / "half/tokens.json").read_text())["ids"],
        )
        wide = transformers.AutoModelForCausalLM.from_pretrained(self.made / "half", dtype=torch.float32).eval()
        with ModelLoop(wide) as loop:  # in float32, whatever the checkpoint
            full = loop.read(ids, PROMPT)
            expected = figures(full, loop.feed({0: kept(0), 2: kept(1)}), ids[PROMPT + 1 :])
        self.assertEqual(figures_in(self.work / "r"), expected)

    def test_gradients_that_came_later_do_not_make_it_another_dump(self):
        folder, dump = self.results("layer"), Path(shutil.copytree(self.made / "a", self.work / "a"))
        np.save(dump / "layer_01/g_future.npy", np.zeros((4, 2, DECODE, 16), np.float32))
        np.save(dump / "layer_01/mine.npy", np.zeros(3))  # which kvreplay does not use either
        self.done(folder, dump=dump)

    def test_kvreplay_takes_the_folder_as_before(self):
        folder = self.results("evict")
        self.done(folder, "--each-layer")
        (self.work / "a").symlink_to(self.made / "a")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        arguments = json.loads((folder / "run.json").read_text())["arguments"]
        arguments = [
            each.replace("=", f"={self.made}/") if each.endswith(".npy") else each
            for each in arguments
            if each != "--quiet"
        ]
        self.kvreplay("evict", *arguments, "--resume", place=self.work)
        self.assertEqual({path: path.read_bytes() for path in before}, before)
        self.kvreplay("report", "evict", "--out", "page.html", place=self.work)
        self.kvreplay("compare", "evict", self.made / "evict", "--out", "compared", place=self.work)
        (folder / "mine.csv").write_text("kept\n")
        self.kvreplay("evict", *arguments, "--force", place=self.work)
        left = sorted(path.name for path in folder.glob("*") if path.suffix in (".csv", ".json"))
        self.assertEqual(
            left, ["decode.csv", "evictions.csv", "files.csv", "mine.csv", "run.json", "summary.json"]
        )  # it told of the others

    @unittest.skipUnless(MODEL, "KVREPLAY_MODEL is not set")
    def test_the_sample(self):
        self.kvreplay(
            "evict", SAMPLE, "--policy", "h2o,snapkv,streaming", "--sigma", "0.5,0.9", "--out", "r", place=self.work
        )
        status, text = said(kvvalidate.main, ["--model", MODEL, "--results", str(self.work / "r")])
        self.assertEqual(status, 0, text)
        kl = {
            (row["policy"], row["budget"]): float(row["value"])
            for row in rows(self.work / "r")
            if row["metric"] == "kl"
        }
        for policy in ("h2o", "snapkv", "streaming"):
            self.assertLess(2 * kl[policy, "0.5"], kl[policy, "0.9"])


if __name__ == "__main__":
    if not KVREPLAY:
        print("SKIPPED, nothing was tested: KVREPLAY is not set", file=sys.stderr)
        sys.exit(77)
    unittest.main()
