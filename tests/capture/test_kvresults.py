"""kvresults on real result folders of the sample: every value against the files as NumPy and csv read them.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvresults.py

Needs pandas (without: nothing is tested, exit status 77).
"""
import csv
import functools
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "data/samples/pystdlib-lm"
FORMAT = ROOT / "analysis/RESULTS-FORMAT.md"
PROGRAM = os.environ.get("KVREPLAY")
sys.path.insert(0, str(ROOT / "data/capture"))
sys.dont_write_bytecode = True

try:
    import numpy as np
    import pandas as pd

    import kvresults
    from kvresults import ResultsError, open_results
except ImportError as error:
    if error.name not in ("numpy", "pandas"):
        raise
    MISSING = f"needs {error.name}"
else:
    MISSING = "" if PROGRAM else "KVREPLAY names no kvreplay"

# Names for the result folders, and the commands that fill them; {work} is where they lie. Together they write every kind of file.
COMMANDS = {
    "tokens": "tokens --window 32,5% --reserve 0,32",
    "query_heads": "tokens --per-query-head --layers 3,1 --metrics attn,joint,exact_remove --precision f64",
    "evict": "evict --policy h2o,snapkv --diff paper,kvpress --sigma 0.5 --kept mine={work}/kept.npy --layers 2,5",
    "own": "evict --policy snapkv,snapkv[window=16,pool=5],score:mine --sigma 0.5 --score mine={work}/mine.npy --layers 4",
    "compared": "tokens --metrics attn,exact_key --score mine={work}/mine.npy --layers 4",
    "decode": "evict --policy h2o,tova --phase prefill,decode,append-only --budget 256 --layers 0-1",
    "budget": "budget --sigma 0.5",
    "profile": "budget --sigma 0.8 --order snapkv --method uniform --profile {work}/budget/budget_curves.npy",
    "profiles": "budget --sigma 0.8 --method uniform --profile {work}/budget/curves/{{order}}~lu.npy",
    "channels": "channels --ratio 0.5 --png",
    "formats": "evict --policy none --bits k4v16 --layers 2",
    "levers": "evict --policy snapkv --sigma 0.5 --channels iap:0.5 --protect 5:15 --layers 2",
    "official": "channels --ratio 0.4 --method think,iap --semantics official --layers 4",
    "retrieval": "evict --policy quest --sigma 0.5 --layers 2",
    "fit": "evict --policy snapkv --sigma 0.9 --compensate none,mass,mean --layers 2",
    "analyze": "analyze --layers 1",
}
# Axes of arrays, by folder and name; n_q = 4, n_kv = 2, d = 64, l = 896 and 128 decoding steps.
AXES = {
    "tokens tokens/attn": "layer 6 x kv_head 2 x token 896, float32",
    "query_heads tokens/attn": "layer 2 x query_head 4 x token 896, float64",
    "tokens maps/attn": "layer 6 x kv_head 2, float64",
    "tokens maps/attn~exact_remove~recall@10%~reserve32": "layer 6 x kv_head 2, float64",
    "tokens maps/attn~exact_remove~recall@10%~window45~reserve32": "layer 6 x kv_head 2, float64",
    "evict kept/snapkv-kvpress-prefill-448": "layer 2 x kv_head 2 x token 896, bool",
    "evict diff/snapkv-paper-kvpress-prefill-0.5": "layer 2 x kv_head 2 x token 896, int32",
    "evict maps/h2o-paper-prefill-448~future~output_error": "layer 2 x kv_head 2, float64",
    "own kept/snapkv[window=16,pool=5]-paper-prefill-448": "layer 1 x kv_head 2 x token 896, bool",
    "own maps/score_mine-paper-prefill-448~future~output_error": "layer 1 x kv_head 2, float64",
    "compared tokens/mine": "layer 1 x kv_head 2 x token 896, float32",
    "decode last_rows/h2o-paper-decode-256": "layer 2 x kv_head 2 x position 1024, int32",
    "levers pruned/snapkv-paper-prefill-448": "layer 1 x kv_head 2 x channel 64, bool",
    "formats key_costs/none-paper-prefill-896": "layer 1 x kv_head 2 x channel 64, float64",
    "decode decode_tokens/tova-paper-256": "layer 2 x kv_head 2 x step 128, float64",
    "retrieval read/quest-paper-prefill-448": "layer 1 x kv_head 2 x step 128 x byte 112, uint8",
    "decode decode/h2o~append-only-paper-256": "layer 2 x kv_head 2 x step 128, float64",
    "budget kept/keydiff-lu-0.5": "layer 6 x kv_head 2 x token 896, bool",
    "budget curves/snapkv": "layer 6 x kv_head 2 x budget 897, float64",
    "budget curves/snapkv~lu": "sigma 99 x layer 6 x kv_head 2, float32",
    "profile curves/profile": "sigma 99 x layer 6 x kv_head 2, float32",
    "profiles curves/keydiff~profile": "sigma 99 x layer 6 x kv_head 2, float32",
    "channels channels/interaction": "layer 6 x kv_head 2 x channel 64 x other_channel 64, float64",
    "channels channels/output_interaction": "layer 6 x kv_head 2 x channel 64 x other_channel 64, float64",
    "channels channels/spectrum": "layer 6 x kv_head 2 x eigenvalue 64, float64",
    "channels channels/rope_pair": "layer 6 x channel 64, int32",
    "channels channels/query_future_std": "layer 6 x query_head 4 x channel 64, float64",
    "channels channels/iap_order": "layer 6 x kv_head 2 x rank 64, int32",
    "channels channels/exchange-0.5": "layer 6 x kv_head 2 x channel 64, bool",
    "channels maps/off_diagonal_share": "layer 6 x kv_head 2, float64",
    "official channels/iap-0.4": "layer 1 x query_head 4 x channel 64, bool",
    "official channels/interaction": "layer 1 x query_head 4 x channel 64 x other_channel 64, float64",
}


def recorded(folder):
    """The files of a run that files.csv has to name."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name not in ("summary.json", "run.json", "files.csv"))


@unittest.skipIf(MISSING, MISSING)
class KvresultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="kvresults-")
        cls.addClassCleanup(place.cleanup)
        cls.work = Path(place.name)
        np.save(cls.work / "mine.npy", np.sin(np.arange(6.0 * 2 * 896) ** 2).reshape(6, 2, 896))
        np.save(cls.work / "kept.npy", np.arange(6 * 2 * 896).reshape(6, 2, 896) % 3 == 0)
        for name, line in COMMANDS.items():
            command, *options = line.format(work=cls.work).split()
            subprocess.run([PROGRAM, command, DUMP, "--out", cls.work / name, "--backend", "cpu", "--quiet", *options], check=True)
        cls.tokens = json.loads((DUMP / "tokens.json").read_text(encoding="utf-8"))

    def open(self, name, dump=None):
        return open_results(self.work / name, dump)

    def copy(self, name):
        folder = Path(tempfile.mkdtemp(dir=self.work)) / name
        shutil.copytree(self.work / name, folder)
        return folder

    def assert_refused(self, pattern, call, *arguments, **keywords):
        with self.assertRaisesRegex(ResultsError, pattern) as caught:
            call(*arguments, **keywords)
        self.assertNotIn("\n", str(caught.exception))

    def test_every_file_of_the_format_is_made_and_read(self):
        """What the format names is there, and all that is there comes back as it is on disk."""
        seen = set()
        for name in COMMANDS:
            results, folder = self.open(name), self.work / name
            for kind in ("tokens", "kept", "last_rows", "pruned", "diff", "channels", "key_costs", "maps", "curves", "decode"):
                found = {path.stem for at in ("layer_*/", "") for path in folder.glob(f"{at}{kind}/*.npy")}
                if found:
                    self.assertEqual(results.names(kind), sorted(found))
            for path in sorted(folder.rglob("*.npy")) + sorted(folder.glob("*.csv")):
                relative = path.relative_to(folder)
                seen.add(relative.as_posix())
                if path.name == "files.csv":
                    self.assertEqual(sorted(results._written), recorded(folder))
                    continue
                with self.subTest(f"{name}/{relative}"):
                    if path.suffix == ".csv":
                        self.check_table(getattr(results, path.stem), path)
                        continue
                    here = self.reached(results, relative)
                    np.testing.assert_array_equal(here, np.load(path), strict=True)
            for name in ("summary", "run"):
                self.assertEqual(getattr(results, name), json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        one_dump = FORMAT.read_text(encoding="utf-8").split("\n## Several dumps\n")[0]
        for row in re.findall(r"^\| (`.*?) \|", one_dump, re.M):
            for name in re.findall(r"`([^`]+\.(?:npy|csv))`", row):
                parts = (re.sub("layer_00", r"layer_\\d\\d+", re.escape(part)) for part in re.split("<[^>]*>", name))
                pattern = "(.*/)?" + ".+".join(parts)
                self.assertTrue(any(re.fullmatch(pattern, path) for path in seen), f"no command here writes {name}")

    def test_compensated_caches_are_as_they_are_on_disk(self):
        results, folder = self.open("fit"), self.work / "fit/layer_02/compensated"
        for method, tokens in (("mass", 90), ("mean", 91)):
            name = f"snapkv-paper-prefill-90-{method}"
            held = results.compensated(name, 2)
            self.assertEqual(len(held), 2)
            for head, each in enumerate(held):
                self.assertEqual([len(x) for x in each[:3]], [tokens] * 3)
                self.assertEqual(each.keys is None, method == "mass")
                for key, array in each._asdict().items():
                    if array is not None:
                        np.testing.assert_array_equal(array, np.load(folder / name / f"{key}_{head}.npy"), strict=True)
            self.assertLessEqual(set(np.flatnonzero(results.kept("snapkv-paper-prefill-90", 2)[0])), set(held[0].tokens))
        self.assert_refused("no snapkv-paper-prefill-90-none in", results.compensated, "snapkv-paper-prefill-90-none", 2)
        self.assert_refused("no snapkv-paper-prefill-90-mass in", results.compensated, "snapkv-paper-prefill-90-mass", 3)
        broken = self.copy("fit")
        path = broken / "layer_02/compensated/snapkv-paper-prefill-90-mass/values_0.npy"
        path.write_bytes(path.read_bytes()[:-4])
        self.assert_refused("values_0.npy: expected", open_results(broken).compensated, "snapkv-paper-prefill-90-mass", 2)

    def reached(self, results, relative):
        """The array of a file, in the way that a user asks for it."""
        method = {"tokens": "tokens", "kept": "kept", "last_rows": "last_rows", "pruned": "pruned", "key_costs": "key_costs", "diff": "kept_difference", "channels": "channel_array", "maps": "maps",
                  "curves": "curves", "decode": "decode_steps", "decode_tokens": "decode_tokens"}
        if relative.name == "budget_curves.npy":
            return results.budget_curves().values
        if "compensated" in relative.parts:
            layer, _, name, _ = relative.parts
            key, head = relative.stem.split("_")
            return getattr(results.compensated(name, int(layer.split("_")[1]))[int(head)], key)
        *layer, kind, _ = relative.parts
        get = functools.partial(results.array, kind) if kind == "read" else getattr(results, method[kind])
        if not layer:
            return get(relative.stem).values
        number = int(layer[0].split("_")[1])
        one, all_layers = get(relative.stem, layer=number), get(relative.stem)
        self.assertEqual(("layer", *one.axes), tuple(all_layers.axes))
        self.assertEqual(list(all_layers.axes["layer"]), results.layers)
        np.testing.assert_array_equal(one.values, all_layers[results.layers.index(number)], strict=True)
        return one.values

    def check_table(self, frame, path):
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        self.assertEqual(list(frame.columns), header)
        self.assertEqual(len(frame), len(rows))
        for at, column in enumerate(header):
            for found, text in zip(frame[column], (row[at] for row in rows)):
                if text in ("", "nan"):
                    self.assertTrue(pd.isna(found), f"{column}: {found}")
                elif column in kvresults.WORDS:
                    self.assertEqual(found, text)
                elif found != float(text):  # to the last bit
                    self.fail(f"{column}: expected {text}, found {found!r}")

    def test_rows_and_arrays_need_no_pandas(self):
        with mock.patch.object(kvresults, "pd", None):
            results = self.open("evict")
            with open(self.work / "evict/evictions.csv", encoding="utf-8", newline="") as file:
                self.assertEqual(results.rows("evictions"), list(csv.DictReader(file)))
            kept = results.kept(results.names("kept")[0])
            self.assertEqual(kept.shape[2], 896)
            for ask in (lambda: results.evictions, kept.frame, kept.wide):
                self.assert_refused("a data frame needs pandas; arrays and rows\\(\\) do without", ask)
        self.assert_refused("no heads.csv; it comes from `kvreplay tokens`", results.rows, "heads")

    def test_axes(self):
        for which, expected in AXES.items():
            folder, path = which.split()
            array = self.open(folder).array(*path.split("/"))
            self.assertEqual(repr(array), f"{path}: {expected}")
            self.assertEqual([len(labels) for labels in array.axes.values()], list(array.values.shape))
        self.assertEqual(list(self.open("evict").kept("h2o-paper-prefill-448").axes["layer"]), [2, 5])
        sigma = self.open("budget").budget_curves().axes["sigma"]
        self.assertEqual((sigma[0], sigma[49], sigma[98]), (0.01, 0.5, 0.99))

    def test_long_frame(self):
        array = self.open("query_heads", DUMP).tokens("joint")
        frame = array.frame()
        self.assertEqual(list(frame.columns), ["layer", "query_head", "token", "text", "value"])
        self.assertEqual(len(frame), 2 * 4 * 896)
        values = {at: np.load(self.work / f"query_heads/layer_{at:02d}/tokens/joint.npy") for at in (1, 3)}
        for layer, head, token, text, value in frame.itertuples(index=False):
            self.assertEqual(value, values[layer][head, token])
            self.assertEqual(text, self.tokens["text"][token])
        plain = self.open("query_heads").tokens("joint", layer=3).frame()
        self.assertEqual(list(plain.columns), ["query_head", "token", "value"])

    def test_wide_frame(self):
        results = self.open("evict")
        worst = np.load(self.work / "evict/maps/h2o-paper-prefill-448~future~output_error.npy")
        wide = results.maps("h2o-paper-prefill-448~future~output_error").wide()
        self.assertEqual((wide.index.name, list(wide.index), wide.columns.name), ("layer", [2, 5], "kv_head"))
        self.assertEqual(wide.loc[5, 1], worst[1, 1])
        kept = results.kept("h2o-paper-prefill-448").wide()
        self.assertEqual(kept.shape, (4, 896))
        stored = np.load(self.work / "evict/layer_05/kept/h2o-paper-prefill-448.npy")
        self.assertEqual(list(kept.loc[(5, 0)]), list(stored[0]))
        self.assert_refused("two axes", self.open("channels").channel_array("rope_pair", layer=0).wide)

    def test_an_array_is_a_numpy_array_in_all_but_name(self):
        array = self.open("tokens").tokens("attn", layer=0)
        plain = np.load(self.work / "tokens/layer_00/tokens/attn.npy")
        for found, expected in ((array[1], plain[1]), (array * 2 - array, plain), (np.log1p(array), np.log1p(plain)),
                                (array.argsort(axis=1), plain.argsort(axis=1)), (np.mean(array, axis=0), plain.mean(axis=0)),
                                (array > 0.5, plain > 0.5), (np.array(array), plain), (np.stack(list(array)), plain)):
            self.assertIs(type(found), np.ndarray)
            np.testing.assert_array_equal(found, expected)
        self.assertEqual((len(array), array.shape, array.ndim), (2, (2, 896), 2))
        again = pickle.loads(pickle.dumps(array))
        self.assertEqual((repr(again), list(again.axes)), (repr(array), ["kv_head", "token"]))

    def test_levels_part_a_table(self):
        results = self.open("budget")
        levels = {level: results.table("budgets", level) for level in ("head", "layer", "model")}
        self.assertEqual([len(frame) for frame in levels.values()], [12 * 10, 6 * 10, 10])
        self.assertEqual(sum(map(len, levels.values())), len(results.budgets))
        self.assertEqual(list(levels["layer"].columns[:2]), ["layer", "order"])
        self.assertEqual(levels["head"]["kv_head"].dtype, "int64")
        for row in levels["model"].itertuples():
            total = results.summary["totals"]["budget_losses"][f"{row.order}-{row.method}-{row.sigma:g}"]
            self.assertEqual(row.loss, total)
            ours = levels["head"].query("order == @row.order and method == @row.method")["loss"]
            self.assertTrue(math.isclose(ours.sum(), total, rel_tol=1e-12))
        self.assert_refused("no rows of a model", self.open("tokens").table, "heads", "model")
        self.assert_refused("expected head, layer, model or median head", results.table, "budgets", "heads")

    def test_head_budgets_are_shares_of_the_tokens(self):
        results = self.open("budget")
        for method in ("uniform", "lu"):
            shares = results.head_budgets("snapkv", method, 0.5)
            self.assertEqual(repr(shares), f"head_budgets/snapkv-{method}-0.5: layer 6 x kv_head 2, float64")
            budgets = np.asarray(results.maps(f"snapkv-{method}-0.5~budget"))
            np.testing.assert_array_equal(shares.values, budgets / budgets.sum(), strict=True)
            text = json.loads((self.work / f"budget/head_budgets/snapkv-{method}-0.5.json").read_text())
            self.assertEqual(list(text), [f"L{layer}H{head}" for layer in range(6) for head in range(2)])
            self.assertEqual(list(text.values()), shares.values.ravel().tolist())
        self.assert_refused("no snapkv-lu-0.6.json in head_budgets; near: snapkv-lu-0.5", results.head_budgets, "snapkv", "lu", "0.6")
        broken = self.copy("budget")
        path = broken / "head_budgets/snapkv-lu-0.5.json"
        path.write_text(path.read_text().replace("0", "1", 1))
        self.assert_refused("found other bytes", open_results(broken).head_budgets, "snapkv", "lu", 0.5)

    def test_kl_of_every_step_is_in_nats_as_it_was_written(self):
        folder = self.copy("evict")
        cases = [("h2o", "paper", "prefill", "0.5", "448", "stored"), ("h2o", "paper", "prefill", "0.5", "448", "written")]
        (folder / "validate.csv").write_text("policy,semantics,phase,budget,kept,protocol,metric,value\n"
                                             + "".join(f"{','.join(case)},kl,0.5\n" for case in cases), encoding="utf-8")
        written = np.arange(2 * 128, dtype=float).reshape(2, 128)
        np.save(folder / "validate_steps.npy", written)
        found = open_results(folder).kl_by_step()
        self.assertEqual(list(found), cases)
        np.testing.assert_array_equal(np.stack(list(found.values())), written)
        np.save(folder / "validate_steps.npy", written[:1])
        self.assert_refused("expected 2 cases x 128 steps, found shape", open_results(folder).kl_by_step)

    def test_what_there_is(self):
        results = self.open("tokens")
        self.assertEqual(results.tables, ["heads", "agreement"])
        self.assertEqual(sorted(results.metrics), results.names("tokens"))
        self.assertEqual(results.metrics[0], "attn")
        self.assertEqual(results.scores[0], "attn")
        self.assertIn("oracle_next", results.references)
        self.assertEqual(self.open("query_heads").layers, self.open("query_heads").summary["layers"])
        self.assertIs(results.heads, results.heads)  # read once
        self.assertTrue(hasattr(results, "heads") and "heads" in dir(results))
        self.assertFalse(hasattr(results, "evictions") or "evictions" in dir(results))
        self.assertIn("mine", set(self.open("evict").evictions.policy))

    def test_what_there_is_not(self):
        results = self.open("tokens")
        for name, command in (("evictions", "evict"), ("decode", "evict --phase decode"), ("diff", "evict --diff"),
                              ("budgets", "budget"), ("channels", "channels")):
            self.assert_refused(f"no {name}.csv; it comes from `kvreplay {command}", getattr, results, name)
        for name in ("heads", "agreement"):
            self.assert_refused(f"no {name}.csv; it comes from `kvreplay tokens`", getattr, self.open("budget"), name)
        self.assert_refused("no heads.csv", lambda: self.open("budget").metrics)
        self.assert_refused("no kept arrays; they come from `kvreplay evict` or `kvreplay budget`", results.kept, "snapkv")
        self.assert_refused("no curves arrays; they come from `kvreplay budget`", results.budget_curves)
        self.assert_refused("no atn.npy of tokens; near: attn, ", results.tokens, "atn")
        self.assert_refused("no layer 6; computed were 0, 1, 2, 3, 4, 5", results.tokens, "attn", 6)
        self.assert_refused("no layer 0; computed were 1, 3", self.open("query_heads").tokens, "attn", layer=0)
        self.assert_refused("expected tokens, kept, read, last_rows, pruned, diff", results.names, "pictures")
        with self.assertRaisesRegex(AttributeError, "no evictionss; the tables are heads"):
            results.evictionss
        self.assert_refused("no folder.csv; no command writes it; there are heads, agreement$", results.table, "folder")

    def test_folders_that_are_refused(self):
        self.assert_refused("no such folder", open_results, self.work / "nowhere")
        self.assert_refused("not a result folder of kvreplay", open_results, DUMP.parent)
        for left in ("run.json", "layer_01", ".kvreplay"):
            folder = self.work / f"unfinished-{left.strip('.')}"
            (folder / left).mkdir(parents=True)
            self.assert_refused("no summary.json: an unfinished run; .*--resume", open_results, folder)
        folder = self.copy("query_heads")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        for text, message in ((json.dumps({**summary, "schema": 2}), "schema 2, expected 1"), ("{", "cannot be read"),
                              (json.dumps({"program": "other", "schema": 1}), "not of a result folder"), ("[]", "expected a JSON object, found")):
            (folder / "summary.json").write_text(text, encoding="utf-8")
            self.assert_refused(message, open_results, folder)

    def test_damaged_files_are_refused(self):
        folder = self.copy("query_heads")
        results = open_results(folder)
        whole = (folder / "heads.csv").read_bytes()
        same_size = [whole.replace(b"3", b"4", 1)] if kvresults.xxhash else []
        for text in (b"", whole[:-1], *same_size):
            (folder / "heads.csv").write_bytes(text)
            self.assert_refused(r"heads.csv: expected the \d+ bytes that were written", lambda: results.heads)
        (folder / "layer_03/tokens/attn.npy").write_bytes(b"\x93NUMPY")
        self.assert_refused("attn.npy: expected the .* bytes that were written .*, found 6 bytes", results.tokens, "attn")
        (folder / "files.csv").unlink()  # as results were before there was one
        results = open_results(folder)
        (folder / "heads.csv").write_bytes(whole[:-1])
        self.assert_refused("heads.csv: cannot be read as a table: the last line does not end", lambda: results.heads)
        self.assert_refused("attn.npy: expected a .npy file of booleans", results.tokens, "attn")
        np.save(folder / "maps/attn.npy", np.zeros((2, 3)))
        self.assert_refused(r"maps/attn.npy: expected layer 2 x kv_head 2, found shape \(2, 3\)", results.maps, "attn")

    def test_texts_of_the_dump(self):
        self.assertEqual(self.open("tokens", DUMP / "tokens.json").texts, self.tokens["text"])
        path = self.work / "tokens.json"
        path.write_text(json.dumps({"ids": self.tokens["ids"]}), encoding="utf-8")
        self.assertEqual(self.open("tokens", path).texts, [str(each) for each in self.tokens["ids"]])
        path.write_text(json.dumps({"text": self.tokens["text"][1:]}), encoding="utf-8")
        self.assert_refused("1023 tokens, expected the 1024", self.open, "tokens", path)
        self.assert_refused("tokens.json: expected a file, found none", self.open, "tokens", self.work / "tokens")

    def test_the_median_head_of_every_figure(self):
        """Against NumPy's, of a long table and a wide one."""
        for folder, name, keys in (("evict", "evictions", ["policy", "semantics", "phase", "budget", "rows", "metric"]),
                                   ("budget", "budgets", ["order", "method", "sigma"])):
            with self.subTest(name):
                results = open_results(self.work / folder)
                heads, found = (results.table(name, level=level) for level in ("head", "median head"))
                self.assertFalse({"layer", "kv_head", "kept"} & set(found))
                self.assertEqual(len(found), len(heads[keys].drop_duplicates()))
                figure = "value" if name == "evictions" else "output_error"
                for _, row in found[found[keys].notna().all(axis=1)].iloc[::7].iterrows():
                    of = heads[(heads[keys] == row[keys]).all(axis=1)]
                    np.testing.assert_equal(row[figure], of[figure].median())

    def test_results_over_several_dumps(self):
        """Every figure over the dumps against the single tables, as pandas averages them."""
        short = self.work / "dumps" / "sample"
        if not short.exists():
            shutil.copytree(DUMP, short)
            manifest = json.loads((short / "manifest.json").read_text(encoding="utf-8"))
            (short / "manifest.json").write_text(json.dumps({**manifest, "prompt_len": 700}), encoding="utf-8")
        out = self.work / "over"
        command = [PROGRAM, "analyze", DUMP, short, "--out", out, "--backend", "cpu", "--only", "tokens,evict", "--layers", "0,4"]
        subprocess.run([*command, "--metrics", "attn,key,exact_remove", "--quiet"], check=True)
        results = open_results(out)
        self.assertEqual(list(results.dumps), [DUMP.name, "sample"])
        self.assertEqual(results.tables, ["heads_over_dumps", "agreement_over_dumps", "evictions_over_dumps", "comparisons"])
        self.assertEqual(list(results.dump_list["l"]), [896, 700])
        single = results.dumps["sample"]
        self.assertEqual(single.tokens("attn", 4).shape, (2, 700))
        for name, derived in (("evictions", ["kept", "kept_share"]), ("agreement", [])):
            with self.subTest(name):
                frames = [each.table(name, level="head").drop(columns=derived) for each in results.dumps.values()]
                keys = [column for column in frames[0] if column != "value"]
                expected = pd.concat(frames).groupby(keys, sort=False, dropna=False)["value"].agg(["count", "mean", "std"])
                found = expected[expected["count"] == 2].reset_index().merge(results.table(f"{name}_over_dumps", level="head"), on=keys,
                                                                             suffixes=("_expected", ""))
                self.assertEqual(len(found), sum(expected["count"] == 2))
                self.assertGreater(len(found), 50)
                np.testing.assert_array_equal(found["n"], 2)
                plain = found[(found["metric"] != "spearman") | (found["mean_expected"].abs() == 1)]
                np.testing.assert_allclose(plain["mean"], plain["mean_expected"], rtol=1e-12, atol=1e-15)
                np.testing.assert_allclose(found["sd"], found["std"], rtol=1e-6, atol=1e-12)
                self.assertTrue(found["ci_low"].isna().all() and found["ci_high"].isna().all())  # of two dumps
        pairs = results.table("comparisons")
        pairs = pairs[(pairs["table"] == "evictions") & (pairs["left"] == "h2o") & (pairs["right"] == "snapkv")]
        pairs = pairs[(pairs["metric"] == "output_error") & (pairs["rows"] == "future")].set_index("budget")
        for budget in (0.5, 0.8):
            logs = []
            for each in results.dumps.values():
                of = each.table("evictions", level="model")
                of = of[(of["metric"] == "output_error") & (of["rows"] == "future") & (of["budget"] == budget)]
                loss = of.set_index("policy")["value"]
                logs.append(np.log(loss["h2o"] / loss["snapkv"]))
            log_ratio = np.mean(logs)
            self.assertAlmostEqual(pairs.loc[budget, "log_ratio"], log_ratio, places=12)
            self.assertTrue(np.isnan(pairs.loc[budget, ["low", "high", "p"]].astype(float)).all())
        medians = [each.table("agreement").groupby(["score", "reference", "metric"])["value"].median() for each in results.dumps.values()]
        model = results.table("agreement_over_dumps", level="model").set_index(["score", "reference", "metric"])["mean"]
        expected = (sum(medians) / 2).loc[model.index]
        rho = model.index.get_level_values("metric") == "spearman"
        np.testing.assert_allclose(model[~rho], expected[~rho], rtol=1e-12)
        fisher = np.tanh(sum(np.arctanh(each.loc[model.index][rho].where(lambda r: r < 1)) for each in medians) / 2)
        np.testing.assert_allclose(model[rho], fisher.fillna(expected[rho]), rtol=1e-12)
        self.assert_refused("no budgets_over_dumps.csv; there are heads_over_dumps", results.table, "budgets_over_dumps")
        self.assert_refused("over several dumps; open one of them", open_results, out, DUMP)
        self.assertFalse(hasattr(results, "agreement") or hasattr(results, "tea_over_dumps"))
        self.assertIn("evictions_over_dumps", dir(results))
        with self.assertRaisesRegex(AttributeError, "no agreement; the tables are heads_over_dumps, agreement_over_dumps"):
            results.agreement
        self.assertTrue(hasattr(results, "evictions_over_dumps"))
        self.assertIn("2 dumps, tables heads_over_dumps", repr(results))

    def test_budgets_by_the_profile_of_the_other(self):
        """Of two dumps each takes the other's profile; over the dumps that is a method like the others."""
        dumps = [self.work / "pair" / name for name in ("first", "second")]
        for dump, length in zip(dumps, (896, 600)):
            shutil.copytree(DUMP, dump)
            manifest = json.loads((dump / "manifest.json").read_text(encoding="utf-8"))
            (dump / "manifest.json").write_text(json.dumps({**manifest, "prompt_len": length}), encoding="utf-8")
        out = self.work / "by_others"
        command = [PROGRAM, "budget", *dumps, "--out", out, "--layers", "1,3", "--method", "uniform,lu", "--quiet"]
        subprocess.run(command, check=True)
        results = open_results(out)
        self.assertEqual(list(results.left_one_out), ["first", "second"])
        each = results.left_one_out["first"]
        np.testing.assert_array_equal(each.curves("keydiff~profile"), results.dumps["second"].curves("keydiff~lu"))
        self.assertEqual(set(each.budgets["method"]), {"profile"})
        model = results.table("budgets_over_dumps", level="model").set_index(["method", "order", "sigma", "metric"])["mean"]
        single = [one.table("budgets", level="model").set_index(["order", "sigma"])["output_error"]
                  for one in results.left_one_out.values()]
        mean = (single[0] + single[1]) / 2
        for (order, sigma), expected in mean.items():
            self.assertAlmostEqual(model["profile", order, sigma, "output_error"], expected, delta=1e-12)
        results.summary["leave_one_out"] = ["first", "third"]
        del results.__dict__["left_one_out"]
        self.assert_refused("leave_one_out: expected dumps, found", lambda: results.left_one_out)

    def test_the_readme_shows_what_it_prints(self):
        """The commands on the page of capture that make the folders of its notebook, then the notebook."""
        readme = (ROOT / "data/capture/README.md").read_text(encoding="utf-8")
        code, output = re.search(r"Your notebook.*?```python\n(.*?)```\n+```text\n(.*?)```", readme, re.S).groups()
        place = self.work / "readme"
        place.mkdir()
        (place / "data").symlink_to(ROOT / "data")
        for folder in re.findall(r'open_results\("(.*?)"', code):
            line = re.search(rf"^kvreplay (.* --out {folder})$", readme, re.M).group(1)
            subprocess.run([PROGRAM, *line.split(), "--quiet"], cwd=place, check=True)
        run = subprocess.run([sys.executable, "-c", code], cwd=place, check=True, stdout=subprocess.PIPE, encoding="utf-8",
                             env={**os.environ, "PYTHONPATH": str(ROOT / "data/capture"), "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(run.stdout.split(), output.split())  # how pandas aligns differs between its versions


if __name__ == "__main__":
    if MISSING:
        print(f"SKIPPED, nothing was tested: {MISSING}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
