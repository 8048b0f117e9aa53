"""`kvcapture.py --check` on damaged dumps: every file with every damage, every key of the manifest with every value.

  python3 tests/capture/test_kvcapture_check.py

Needs NumPy only (without: nothing is tested, exit status 77).
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "data/capture/kvcapture.py"
sys.path.insert(0, str(SCRIPT.parent))
sys.dont_write_bytecode = True

sys.path.insert(0, str(ROOT / "tests/hostile"))

import damage  # noqa: E402
from damage import damaged  # noqa: E402

try:
    import numpy as np

    import costly_steps
    import dump_check
    import dump_files
    import kvcapture
    import prompt_tokens
except ImportError as error:
    if error.name != "numpy":
        raise
    MISSING = "needs numpy"
else:
    MISSING = ""

LAYERS, N_Q, N_KV, T, D, D_V = 2, 4, 2, 24, 8, 6
SAMPLES, DECODED, WINDOW = 3, 4, 5
WRONG = (
    True,
    False,
    -1,
    0,
    1,
    3,
    2.5,
    1e9,
    10**9,
    1e300,
    2**63 - 1,
    10**400,
    float("nan"),
    float("inf"),
    "x",
    "\x1b[2J" * 9999,
    [],
    {},
    [None],
    [1, 1],
    [1] * LAYERS,
    [0, 2**70],
    ["a", {}],
    [[1.0] * N_Q] * LAYERS,
    [[1.0]] * LAYERS,
    [[float("nan")] * N_Q] * LAYERS,
)
MANIFEST = {
    "model": "random",
    "prompt_len": 20,
    "total_len": T,
    "n_layers": LAYERS,
    "n_q_heads": N_Q,
    "n_kv_heads": N_KV,
    "head_dim": D,
    "scale": 0.5,
    "causal": True,
    "dtype": None,
    "logit_softcap": 4.0,
    "sliding_window": [None, 7],
    "sink_logit": [None, [0.5, -1.0, 2.0, 0.0]],
    "rope_note": "no rope: no layer turns",
    "layers": [0, 1],
    "gradients": {"samples": SAMPLES, "labels": "model", "seed": 0},
    "origin": "a test",
}


def write_dump(folder):
    """A random dump whose output follows, one query at a time."""
    random = np.random.default_rng(5)
    for layer in range(LAYERS):
        (folder / f"layer_{layer:02}").mkdir(parents=True)
        q, k, v = (
            random.normal(size=(heads, T, width)).astype(np.float32)
            for heads, width in ((N_Q, D), (N_KV, D), (N_KV, D_V))
        )
        window, sinks = MANIFEST["sliding_window"][layer] or T, MANIFEST["sink_logit"][layer] or [-np.inf] * N_Q
        o = np.empty((N_Q, T, D_V), np.float32)
        for head in range(N_Q):
            for i in range(T):
                seen = slice(max(0, i + 1 - window), i + 1)
                z = 4 * np.tanh(0.5 * k[head // 2, seen].astype(float) @ q[head, i] / 4)
                o[head, i] = np.exp(z) @ v[head // 2, seen] / (np.exp(z).sum() + np.exp(sinks[head]))
        gradients = {
            name: random.normal(size=(N_Q, *shape, D_V)).astype(np.float32)
            for name, shape in (("g_future", (SAMPLES, DECODED)), ("g_window", (SAMPLES, WINDOW)), ("g_nll", (DECODED,)))
        }
        for name, array in (*zip("qkvo", (q, k, v, o)), *gradients.items()):
            np.save(folder / f"layer_{layer:02}" / f"{name}.npy", array)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))


@unittest.skipIf(MISSING, MISSING)
class CheckTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="kvcapture-")
        self.addCleanup(place.cleanup)
        self.dump = Path(place.name) / "dump"
        write_dump(self.dump)
        warnings.simplefilter("error")
        self.addCleanup(warnings.resetwarnings)
        self.cases = 0

    def check(self, *arguments):
        """The exit status and what is printed: a few lines that a terminal can show, one where it refuses."""
        self.cases += 1
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as refused:
            status = kvcapture.main(list(arguments) or ["--check", str(self.dump)])
        text = out.getvalue() + refused.getvalue()
        lines = text.splitlines()
        self.assertTrue(
            all(line.isprintable() and len(line) < 1200 for line in lines) and len(lines) <= LAYERS + 4, text[:3000]
        )
        self.assertEqual(refused.getvalue().count("\n"), status == 2)
        return status, text

    def manifest(self, **changes):
        return json.dumps({**MANIFEST, **changes}).encode()

    def put_manifest(self, **changes):
        (self.dump / "manifest.json").write_bytes(self.manifest(**changes))

    def test_a_whole_dump(self):
        status, text = self.check()
        self.assertEqual(status, 0, text)
        self.assertRegex(
            text, r"^layer 0: whole, 24 .* within .*\nlayer 1: whole, 24 .* within .*\nno rope: no layer turns\n$"
        )
        self.assertEqual(text.count("; g_future of 3 x 4 rows; g_window of 3 x 5 rows; g_nll of 4 rows\n"), LAYERS)

    def test_every_file_with_every_damage(self):
        for path in sorted(self.dump.rglob("*.[nj]*")):
            for key, make in damage.all_of(path).items():
                with self.subTest(f"{path.relative_to(self.dump)}: {key}"), damaged(path, make):
                    status, text = self.check()
                    if path.suffix == ".npy" and not key.startswith("flip"):
                        self.assertEqual(status, 1)
                        self.assertRegex(
                            text, rf"layer {path.parent.name[-1]}: {path.name}: (missing|expected .*, found .*)\n"
                        )
                        self.assertRegex(text, rf"layer {1 - int(path.parent.name[-1])}: whole")
        self.assertGreater(self.cases, 300)
        self.assertEqual(self.check()[0], 0)

    def test_every_key_with_every_wrong_value(self):
        path = self.dump / "manifest.json"
        new = ("cache_of", "output_multiplier", "output_norm", "residual_note", "sliding_window_two_sided")
        for key in (*MANIFEST, *new, "incomplete", "wo_note"):
            for number, value in enumerate(WRONG):
                with self.subTest(key, number=number), damaged(path, self.manifest(**{key: value})):
                    status, text = self.check()
                    if status == 2:
                        self.assertRegex(text, "^kvcapture: .*dump(/manifest.json: [a-z_]+)?: expected .*, found ")
        for changes, pattern in (
            ({"n_layers": 10**9}, "dump: expected 1000000000 layers, found 2"),
            ({"n_layers": 1e9}, "n_layers: expected"),
            ({"total_len": 23}, "layer 0: arrays: expected 23 positions"),
            ({"causal": False}, "layer 0: whole, .* off by"),
            ({"causal": 0}, "causal: expected true or false"),
            ({"sliding_window_two_sided": 1}, "sliding_window_two_sided: expected true or false"),
            ({"cache_of": [0, 2]}, "cache_of: expected a layer for each layer"),
            ({"output_norm": {"kind": "layer", "eps": 1e-5}}, "output_norm: expected a kind, rms, and an eps"),
            ({"output_norm": {"kind": "rms", "eps": 0}}, "output_norm: expected a kind, rms, and an eps"),
            ({"output_multiplier": [0.5]}, "output_multiplier: expected a number, or one for each layer"),
            ({"sliding_window": [None]}, "sliding_window: expected a whole number, or one for each layer"),
            ({"sliding_window": 0}, "sliding_window: expected"),
            ({"scale": -0.5}, "scale: expected a positive number"),
            ({"sink_logit": [None, [1]]}, "sink_logit of layer 1: expected 4 numbers, found 1"),
            ({"n_layers": 10**9, "incomplete": True}, "layer 2: q.npy: missing\nlayers 3 to 999999999: missing\n"),
        ):
            with self.subTest(pattern), damaged(path, self.manifest(**changes)):
                status, text = self.check()
                self.assertRegex(text, pattern)
                self.assertNotEqual(status, 0)
        with damaged(path, self.manifest(sliding_window=2**63 - 1, sink_logit=None)):
            self.assertIn("layer 0: whole, 24 positions, o of 8 rows x 4 heads within", self.check()[1])

    def test_encoders(self):
        """Rows see what is ahead, as far as a two-sided window goes."""
        random, n = np.random.default_rng(5), 5
        for layer in range(LAYERS):
            folder = self.dump / f"layer_{layer:02}"
            q, k, v = (random.normal(size=(N_Q, T, D)).astype(np.float32) for _ in "qkv")
            o = np.empty((2, N_Q, T, D))
            for head in range(N_Q):
                z = 0.5 * q[head].astype(float) @ k[head].T
                distance = np.abs(np.arange(T)[:, None] - np.arange(T))
                for kind, seen in enumerate((distance >= 0, distance < n)):
                    a = np.exp(np.where(seen, z, -np.inf))
                    o[kind, head] = a / a.sum(-1, keepdims=True) @ v[head]
            for name, array in zip("qkv", (q, k, v)):
                np.save(folder / f"{name}.npy", array)
            np.save(folder / "o.npy", o[layer].astype(np.float32))
            for path in folder.glob("g_*.npy"):
                path.unlink()
        encoder = {"causal": False, "logit_softcap": None, "sink_logit": None, "sliding_window": [None, n], "prompt_len": T, "gradients": None}
        for two_sided, status in ((True, 0), (False, 1), (None, 1)):
            self.put_manifest(**encoder, sliding_window_two_sided=two_sided)
            self.assertEqual(self.check()[0], status)
        self.put_manifest(**{**encoder, "causal": True})
        self.assertEqual(self.check()[0], 1)

    def test_gates(self):
        shape = np.load(self.dump / "layer_00" / "o.npy").shape
        for layer in range(LAYERS):
            np.save(self.dump / f"layer_{layer:02}" / "gate.npy", np.ones(shape, np.float32))
        self.assertEqual(self.check()[1].count("; gated"), LAYERS)
        path = self.dump / "layer_01" / "gate.npy"
        for wrong, pattern in ((np.ones((*shape[:2], 1), np.float32), r"gate.npy: expected \[4, 24, 6\], found"),
                               (np.full(shape, np.nan, np.float32), "gate.npy: expected finite numbers")):
            np.save(path, wrong)
            status, text = self.check()
            self.assertEqual(status, 1)
            self.assertRegex(text, pattern)
        path.unlink()
        self.assertRegex(self.check()[1], "layer 1: gate.npy: missing")

    def test_notes(self):
        notes = {"wo_note": "no wo: one", "residual_note": "no residual_norm: two", "cache_of": [0, 0], "output_multiplier": [0.5, 1]}
        self.put_manifest(**notes)
        status, text = self.check()
        self.assertEqual(status, 0)
        self.assertRegex(text, "no rope: .*\nno wo: one\nno residual_norm: two\nlayer 1 reads the cache of layer 0\n$")

    def test_byte_order_marks(self):
        """Of every text that a script reads."""
        (self.dump / "manifest.json").write_text(json.dumps(MANIFEST), encoding="utf-8-sig")
        self.assertEqual(self.check()[0], 0)
        tokens = self.dump / "tokens.json"
        for text in (json.dumps({"ids": [1, 2], "text": ["a", "\ufeff"]}), "[1, 2]", "1 2"):
            tokens.write_text(text, encoding="utf-8-sig")
            self.assertEqual(prompt_tokens.read_ids(str(tokens)), [1, 2])
        tokens.write_text("a\ufeffb", encoding="utf-8-sig")
        self.assertEqual(dump_files.read_text(tokens), "a\ufeffb")
        tokens.write_text(json.dumps({"text": ["a", "b"]}), encoding="utf-8-sig")
        self.assertEqual(costly_steps.texts_of(self.dump, 2), ["a", "b"])
        tokens.write_text("[1, 2]", encoding="utf-8-sig")
        self.assertEqual(costly_steps.texts_of(self.dump, 2), [])

    def test_texts_in_another_encoding(self):
        path = self.dump / "text.txt"
        for data, pattern in (("one\ntwo\ncaf\u00e9 au lait".encode("latin-1"),
                               r"found the byte 0xe9 \(Latin-1\? .*\) at offset 11, line 3, byte 4 of it$"),
                              ("a\u00e9".encode()[:-1], "found a character that is cut off at offset 1, line 1, byte 2 of it$"),
                              ("one".encode("utf-16"), r"found one in UTF-16, by its first bytes \(iconv -f UTF-16 "),
                              ("one".encode("utf-32"), "found one in UTF-32"), ("one\ntwo".encode("utf-16-le"), "found a zero byte .* at offset 1, line 1, byte 2"),
                              ("one".encode("utf-16-be"), "found a zero byte .* at offset 0, line 1, byte 1")):
            path.write_bytes(data)
            with self.assertRaisesRegex(kvcapture.CaptureError, f"text.txt: expected a text in UTF-8, {pattern}"):
                dump_files.read_text(path)
        for name, found in (("none.txt", "No such file or directory"), ("", "Is a directory")):
            with self.assertRaisesRegex(kvcapture.CaptureError, f"expected a file that can be read, found {found}"):
                dump_files.read_text(self.dump / name)

    def test_arrays_that_shrink_while_they_are_read(self):
        shapes = dump_check.layer_files
        for name in "qkvo":
            path = self.dump / f"layer_00/{name}.npy"

            def shapes_of_what_shrinks(*arguments, path=path):
                os.truncate(path, 0)
                return shapes(*arguments)

            with (
                self.subTest(name),
                damaged(path, path.read_bytes()),
                unittest.mock.patch.object(dump_check, "layer_files", shapes_of_what_shrinks),
            ):
                status, text = self.check()
                self.assertEqual(status, 1)
                self.assertRegex(text, rf"^layer 0: {name}\.npy: expected .*, found a shorter file\n")

    def test_arrays_that_do_not_go_together(self):
        path = self.dump / "layer_00"
        whole = {name: np.load(path / f"{name}.npy") for name in "qkvo"}
        for name, part in (
            ("q", np.s_[:3]),
            ("k", np.s_[:1]),
            ("v", np.s_[:, 1:]),
            ("q", np.s_[:, :, 1:]),
            ("o", np.s_[:, 1:]),
            ("o", np.s_[0]),
            ("k", np.s_[:, :, :0]),
            ("v", np.s_[None]),
            ("o", np.s_[:, :, :1]),
        ):
            with (
                self.subTest(name, part=part),
                damaged(path / f"{name}.npy", lambda file: np.save(file, whole[name][part])),
            ):
                self.assertEqual(self.check()[0], 1)
        for dtype in ("float64", ">f4", "int32", "V2", "U1", "O"):
            save = lambda file: np.save(file, np.ones_like(whole["k"], dtype), allow_pickle=True)  # noqa: E731
            with self.subTest(dtype), damaged(path / "k.npy", save):
                status, text = self.check()
                self.assertRegex(text, "layer 0: k.npy: expected .*, found ")

    def test_gradients_that_do_not_fit(self):
        path = self.dump / "layer_01"
        whole = {path.stem: np.load(path) for path in path.glob("g_*.npy")}
        nan, late = whole["g_nll"].copy(), whole["g_future"].copy()
        nan[2, 1, 3], late[3, 2, 3, 5] = np.nan, np.inf
        for name, array, pattern in (
            ("g_future", whole["g_future"][:3], r"g_future.npy: expected \[4, 3, 4, 6\], found \[3, 3, 4, 6\]"),
            ("g_future", whole["g_future"][:, :2], r"expected \[4, 3, 4, 6\], found \[4, 2, 4, 6\]"),
            ("g_future", whole["g_future"][:, :, 1:], r"expected \[4, 3, 4, 6\], found \[4, 3, 3, 6\]"),
            ("g_window", whole["g_window"][..., 1:], r"expected \[4, 3, 5, 6\], found \[4, 3, 5, 5\]"),
            ("g_window", whole["g_window"][:, :, 1:], r"expected \[4, 3, 5, 6\], found \[4, 3, 4, 6\]"),
            ("g_nll", whole["g_nll"][:, 1:], r"expected \[4, 4, 6\], found \[4, 3, 6\]"),
            ("g_nll", whole["g_nll"][None], "g_nll.npy: expected 3 dimensions of"),
            ("g_window", whole["g_window"][0], "g_window.npy: expected 4 dimensions of"),
            ("g_nll", nan, "g_nll.npy: expected finite numbers, found a NaN or an infinity"),
            ("g_future", late, "g_future.npy: expected finite numbers, found a NaN or an infinity"),
        ):
            file = path / f"{name}.npy"
            with self.subTest(pattern), damaged(file, lambda file, array=array: np.save(file, array)):
                status, text = self.check()
                self.assertEqual(status, 1)
                self.assertRegex(text, f"layer 0: whole.*\nlayer 1: .*{pattern}")
        for changes, pattern in (
            ({"gradients": {"samples": 4}}, r"layer 0: g_future.npy: expected \[4, 4, 4, 6\], found \[4, 3, 4, 6\]"),
            ({"gradients": {"samples": 0}}, "gradients: expected an object with a number of samples, found"),
            ({"prompt_len": 24}, r"layer 0: g_future.npy: expected \[4, 3, 0, 6\]"),
        ):
            with self.subTest(pattern), damaged(self.dump / "manifest.json", self.manifest(**changes)):
                status, text = self.check()
                self.assertNotEqual(status, 0)
                self.assertRegex(text, pattern)
        with damaged(self.dump / "manifest.json", self.manifest(gradients=None)):
            self.assertEqual(self.check()[0], 0)  # written by somebody else
        for name in ("g_future", "g_window"):
            for layer in range(LAYERS):
                (self.dump / f"layer_{layer:02}" / f"{name}.npy").unlink()
        self.assertRegex(self.check()[1], "\ngradients: expected g_future.npy or g_window.npy, found g_nll\n")
        with damaged(self.dump / "manifest.json", self.manifest(gradients=None)):
            self.assertEqual(self.check()[0], 0)

    def test_gradients_that_were_interrupted(self):
        (self.dump / "gradients.progress").write_text("{}")
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertRegex(text, "\ngradients: incomplete, they were interrupted \\(--resume goes on\\)\n")

    def test_a_folder_without_layers(self):
        for layer in range(LAYERS):
            shutil.rmtree(self.dump / f"layer_{layer:02}")
        self.assertRegex(self.check()[1], "^kvcapture: .*dump: expected 2 layers, found 0\n$")
        with damaged(self.dump / "manifest.json", self.manifest(n_layers=None)):
            self.assertRegex(self.check()[1], "^kvcapture: .*dump: expected some layers, found 0\n$")

    def test_odd_names_and_options(self):
        for name in ("\x1b[2J\n\r", "x" * 100_000, "\udcff", "\u202egnp"):
            for arguments in (
                ["--check", name],
                [name],
                [f"--{name}"],
                ["--dtype", name],
                ["--decode", name],
                ["--check", f"{self.dump}/{name}"],
            ):
                with self.subTest(arguments=ascii(arguments)[:40]):
                    self.assertEqual(self.check(*arguments)[0], 2)
        odd = self.dump.with_name("\x1b[2J\n")
        self.dump.rename(odd)
        (odd / "manifest.json").write_text(json.dumps({**MANIFEST, "incomplete": True}))
        self.assertRegex(self.check("--check", str(odd))[1], r"\\x1b\[2J\\n: incomplete, the capture was interrupted \(capture again with --force\)\n")

    def test_ids_and_layers(self):
        path = self.dump / "ids.json"
        for data in (
            b"[" * 100_000,
            b"\xff",
            b"[true]",
            b"[1.5]",
            b"{}",
            b'{"ids": 5}',
            b"",
            b"9" * 5000,
            b"{" * 100_000,
        ):
            path.write_bytes(data)
            with self.assertRaisesRegex(kvcapture.CaptureError, "ids.json: expected .*, found "):
                prompt_tokens.read_ids(str(path))
        with self.assertRaisesRegex(kvcapture.CaptureError, "/dev/zero: expected at most 67,108,864 bytes, found more"):
            prompt_tokens.read_ids("/dev/zero")
        path.write_bytes(b"[3, 1, 4]")
        self.assertEqual(prompt_tokens.read_ids(str(path)), [3, 1, 4])
        for found in ([3, 1, 4], [[3, 1, 4]], {"ids": [3, 1, 4]}, {"input_ids": [3, 1, 4]}, {"input_ids": [[3, 1, 4]], "attention_mask": [[1, 1, 1]]},
                      {"prompt_token_ids": [3, 1, 4], "prompt": None}):
            path.write_text(json.dumps(found))
            self.assertEqual(prompt_tokens.read_ids(str(path)), [3, 1, 4])
        for found, pattern in (([[3, 1], [4, 1]], r"one sequence of token ids \(a file each\), found a batch of 2 rows"),
                               ({"input_ids": [[3]] * 3}, "one sequence .*, found a batch of 3 rows"), ([[[3, 1]]], "token ids: .*, found "),
                               ([[3], 1], "token ids: .*, found "), ([[]], "token ids: .*, found "),
                               ({"input_ids": [[3, 1]], "attention_mask": [[0, 1]]}, "no padding, found an attention_mask that is not all ones")):
            path.write_text(json.dumps(found))
            with self.assertRaisesRegex(kvcapture.CaptureError, f"ids.json: expected {pattern}"):
                prompt_tokens.read_ids(str(path))
        for text in ("0-99999999999999", "5", "0,7", "1-2-3", "x", ""):
            with self.assertRaisesRegex(kvcapture.CaptureError, "--layers: expected .*, found "):
                dump_files.read_layers(text, 5)
        self.assertEqual(dump_files.read_layers("0,2-4", 5), [0, 2, 3, 4])

    def test_as_a_command(self):
        def run(*arguments, **streams):
            return subprocess.run(
                [sys.executable, "-W", "error", SCRIPT, *arguments],
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                **streams,
            )

        (self.dump / "layer_01" / "q.npy").unlink()
        os.mkfifo(self.dump / "layer_01" / "q.npy")
        done = run("--check", self.dump, stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("layer 1: q.npy: expected a file, found something else\n", done.stdout)
        with open("/dev/full", "w") as full:
            done = run("--check", self.dump, stdout=full)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertRegex(done.stderr, "^kvcapture: .*No space left on device\n$")


if __name__ == "__main__":
    if MISSING:
        print(f"SKIPPED, nothing was tested: {MISSING}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
