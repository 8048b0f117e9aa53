#!/usr/bin/env python3
"""kvcapture around code of one's own: its options, what it writes, interruptions and --check.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_library.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import json
import re
import subprocess
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, KVREPLAY, PROMPT, ROPE, SMALL, Case, arrays, build, decode, manifest_of, prompt, said, main

import numpy as np
import torch
import transformers

import kvcapture
import model_attention
from kvcapture import capture


class Options(Case):
    def test_window_keeps_the_last_queries_only(self):
        model, ids = build("llama"), prompt()
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, window=5):
            decode(model, ids)
        with capture(model, self.folder / "all", prompt_len=PROMPT, decode=DECODE):
            decode(model, ids)
        self.judge(self.dump)
        for layer in range(3):
            part, whole = arrays(self.dump, layer), arrays(self.folder / "all", layer)
            self.assertEqual(part["q"].shape, (4, 5 + DECODE, 16))
            for name in "kv":
                self.assertTrue(np.array_equal(part[name], whole[name]))
            for name in "qo":
                self.assertTrue(np.array_equal(part[name], whole[name][:, PROMPT - 5:]))

    def test_layers_are_renumbered_and_the_same(self):
        model, ids = build("gemma 3"), prompt()
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, layers=[3, 0], dtype="float16"):
            decode(model, ids)
        with capture(model, self.folder / "all", prompt_len=PROMPT, decode=DECODE, dtype="float16"):
            decode(model, ids)
        self.judge(self.dump)
        manifest = manifest_of(self.dump)
        self.assertEqual((manifest["layers"], manifest["n_layers"], manifest["sliding_window"]), ([0, 3], 2, [9, None]))
        self.assertEqual(sorted(p.name for p in self.dump.glob("layer*")), ["layer_00", "layer_01"])
        for mine, theirs in ((0, 0), (1, 3)):
            for name, array in arrays(self.dump, mine).items():
                self.assertTrue(np.array_equal(array, arrays(self.folder / "all", theirs)[name]))

    def test_dtypes(self):
        for compute, dtype in (("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16"), ("float32", "float16"),
                               ("float16", "bfloat16")):
            with self.subTest(compute=compute, dtype=dtype):
                model, folder = build("llama", getattr(torch, compute)), self.folder / f"{compute}-{dtype}"
                with capture(model, folder, prompt_len=PROMPT, decode=DECODE, dtype=dtype):
                    decode(model, prompt())
                self.judge(folder)
                if compute == "float32":  # o follows to its own rounding
                    errors = re.findall(r"within (\S+) of", said(kvcapture.check, folder)[1])
                    self.assertLess(max(map(float, errors)), 2.0**-8 if dtype == "bfloat16" else 2.0**-11)
                self.assertEqual(manifest_of(folder)["dtype"], "bfloat16" if dtype == "bfloat16" else None)
                self.assertEqual(arrays(folder, 0)["k"].dtype, np.uint16 if dtype == "bfloat16" else np.float16)
        self.refused("dtype float32", capture, build("llama", torch.bfloat16), self.dump, prompt_len=4, dtype="float32")

    def test_bfloat16_gemma3_still_tells_its_rotations_apart(self):
        model = build("gemma 3", torch.bfloat16)
        with capture(model, self.dump, prompt_len=PROMPT):
            decode(model, prompt(), 0)
        frequency = np.array(manifest_of(self.dump)["rope"]["inv_freq"])
        self.assertTrue(np.array_equal(frequency[0], frequency[2]))
        self.assertFalse(np.array_equal(frequency[0], frequency[1]))

    def test_a_run_that_decodes_less(self):
        model, ids = build("llama"), prompt()
        with capture(model, self.dump, prompt_len=PROMPT, decode=100, window=8):
            decode(model, ids)
        self.judge(self.dump)
        self.assertEqual(manifest_of(self.dump)["total_len"], PROMPT + DECODE)
        self.assertEqual(arrays(self.dump, 0)["q"].shape[1], 8 + DECODE)


class Library(Case):
    def test_around_generate(self):
        model, ids = build("mistral"), prompt()
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None)
        with capture(model, self.dump, prompt_len=PROMPT, decode=7):
            tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None)
        self.judge(self.dump)
        self.assertTrue(torch.equal(plain, tokens))  # a capture in the model's dtype changes nothing
        self.assertEqual(json.loads((self.dump / "tokens.json").read_text())["ids"], tokens[0, :-1].tolist())
        self.assertEqual(model.config._attn_implementation, "sdpa")
        self.assertEqual(len(model_attention._STANDING_IN), 0)

    def test_prompt_in_pieces(self):
        for name in ("llama", "gemma 3"):
            model, ids = build(name), prompt()
            with capture(model, self.folder / name, prompt_len=PROMPT), torch.no_grad():
                first = model(input_ids=ids[:, :23], use_cache=True)
                model(input_ids=ids[:, 23:], past_key_values=first.past_key_values, use_cache=True)
            self.judge(self.folder / name)

    def test_positions_that_are_not_adjacent_leave_the_rotation_unknown(self):
        line = torch.arange(PROMPT)[None]
        packed = torch.cat([line[:, :25], line[:, :15]], dim=1)
        for name, positions, known in (("from 0", line, True), ("from 100", line + 100, True), ("every other", 2 * line, False),
                                       ("packed", packed, False), ("all the same", 0 * line, False)):
            with self.subTest(name):
                folder = self.folder / name
                with capture(build("llama"), folder, prompt_len=PROMPT) as running, torch.no_grad():
                    running.model(input_ids=prompt(), position_ids=positions, attention_mask=torch.ones_like(line))
                self.assertEqual("rope" in manifest_of(folder), known)
                self.assertEqual("adjacent" in manifest_of(folder).get("rope_note", ""), not known)
        with capture(build("llama"), self.dump, prompt_len=PROMPT, decode=2) as running, torch.no_grad():
            cache = running.model(input_ids=prompt(), use_cache=True).past_key_values
            for position in (PROMPT, 0):  # the second step begins anew
                at = torch.tensor([[position]])
                running.model(input_ids=prompt()[:, :1], past_key_values=cache, position_ids=at, use_cache=True)
        self.assertIn("adjacent", manifest_of(self.dump)["rope_note"])

    def test_positions_of_several_kinds(self):
        if not hasattr(transformers, "Qwen2VLForConditionalGeneration"):
            self.skipTest("this transformers has no Qwen2-VL")
        text = {**{key: value for key, value in SMALL.items() if key != "head_dim"}, "hidden_size": 64,
                ROPE: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
                                            image_token_id=96, vision_start_token_id=95, vision_end_token_id=94, video_token_id=93)
        torch.manual_seed(7)
        model, line = transformers.Qwen2VLForConditionalGeneration(config).eval(), torch.arange(PROMPT)
        image = torch.stack([line.clamp(max=30), line, line])[:, None]
        for name, positions in (("text", line.expand(3, 1, -1)), ("image", image)):
            with capture(model, self.folder / name, prompt_len=PROMPT), torch.no_grad():
                model(input_ids=prompt() % 90, position_ids=positions)
            self.assertEqual("rope" in manifest_of(self.folder / name), name == "text", name)

    def test_outputs_that_do_not_follow_from_the_files(self):
        """The dump is whole then, and every row of it that can be checked is off."""
        class Coarse(transformers.DynamicCache):
            """One that hands back what a quantization leaves of the keys before."""

            def update(self, key, value, *more, **kwargs):
                keys, values = super().update(key, value, *more, **kwargs)
                return torch.cat([(4 * keys[:, :, :-key.shape[2]]).round() / 4, key], dim=2), values

        def coarse(model):
            cache, ids = Coarse(config=model.config), prompt()
            model(input_ids=ids, past_key_values=cache, use_cache=True)
            model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)

        def cast(model):
            with torch.autocast("cpu", torch.bfloat16):
                model(input_ids=prompt())

        by_layer = {"scale_attn_by_inverse_layer_idx": True}  # eager attention knows that by itself
        for name, model, run, decoded in (("a cache that quantizes", build("llama"), coarse, 1), ("autocast", build("llama"), cast, 0),
                                          ("its own scale", build("gpt 2", **by_layer), lambda model: model(input_ids=prompt()), 0)):
            with self.subTest(name), torch.no_grad():
                folder = self.folder / name
                follows = r"layer [01]: expected o to follow from q, k and v .* off by "
                if name == "its own scale":  # newer versions of transformers call the attention with it
                    follows += "|layer 1, scale: expected layer 0's 0.25, found 0.125"
                with self.assertRaisesRegex(kvcapture.CaptureError, follows) as refused:
                    with capture(model, folder, prompt_len=PROMPT, decode=decoded):
                        run(model)
                if "scale:" in str(refused.exception):
                    continue
                self.assertNotIn("incomplete", manifest_of(folder))
                self.assertFalse(said(kvcapture.check, folder)[0])

    def test_a_head_without_a_sink_beside_heads_with_one(self):
        model = build("gpt-oss")
        with torch.no_grad():
            model.model.layers[1].self_attn.sinks[2] = -torch.inf
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE):
            decode(model, prompt())
        self.judge(self.dump)
        self.assertEqual(manifest_of(self.dump)["sink_logit"][1][2], -1e9)

    def test_heads_that_the_code_around_the_model_ablates(self):
        model = build("llama")
        with capture(model, self.dump, prompt_len=PROMPT), torch.no_grad():
            alive = torch.arange(64) >= 16
            hooks = [layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: (args[0] * alive, *args[1:]))
                     for layer in model.model.layers]
            model(input_ids=prompt())
            for hook in hooks:
                hook.remove()
        self.assertRegex(manifest_of(self.dump)["wo_note"], "changes its heads' outputs before it projects them")
        self.assertFalse((self.dump / "layer_00" / "wo.npy").exists())

    def test_interruption_leaves_what_is_whole(self):
        model, ids, calls = build("llama"), prompt(), []

        def stop(*_):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE):
                model.model.layers[1].register_forward_hook(stop)  # after layer 1 of decoding step 3
                decode(model, ids)
        self.assertTrue(manifest_of(self.dump)["incomplete"])
        good, text = said(kvcapture.check, self.dump)
        self.assertFalse(good)
        self.assertIn("incomplete", text)
        lines = re.findall(r"layer (\d): incomplete, (\d+) of 46", text)
        self.assertEqual(lines, [("0", "43"), ("1", "43"), ("2", "42")], text)
        if KVREPLAY:
            done = subprocess.run([KVREPLAY, "info", self.dump], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("kvcapture.py --check", done.stderr)
        self.assertEqual(model.config._attn_implementation, "sdpa")

    def test_interruption_in_the_prompt(self):
        model = build("llama")
        with self.assertRaises(KeyboardInterrupt):
            with capture(model, self.dump, prompt_len=PROMPT):
                model.model.layers[1].register_forward_pre_hook(mock.Mock(side_effect=KeyboardInterrupt))
                decode(model, prompt(), 0)
        text = said(kvcapture.check, self.dump)[1]
        self.assertIn("layer 0: whole, 40 positions", text)
        self.assertIn("layer 1: q.npy: missing", text)
        self.assertEqual(said(kvcapture.main, ["--check", str(self.dump)])[0], 1)

    def test_check_of_a_file_cut_short(self):
        with capture(build("llama"), self.dump, prompt_len=PROMPT) as running:
            decode(running.model, prompt(), 0)
        path = self.dump / "layer_01" / "v.npy"
        whole = path.read_bytes()
        for size in (0, 5, 100, len(whole) - 1):
            with self.subTest(size=size):
                path.write_bytes(whole[:size])
                good, text = said(kvcapture.check, self.dump)
                self.assertFalse(good)
                self.assertRegex(text, r"layer 0: whole.*\nlayer 1: v.npy: .*\nlayer 2: whole.*\n$")

    def test_check_finds_an_output_that_does_not_follow(self):
        model = build("llama")
        with capture(model, self.dump, prompt_len=PROMPT):
            decode(model, prompt(), 0)
        path = self.dump / "layer_01" / "o.npy"
        o = np.load(path)
        o[3, -1] *= 1.001
        np.save(path, o)
        good, text = said(kvcapture.check, self.dump)
        self.assertFalse(good)
        self.assertRegex(text, r"layer 0: whole.* within .*\nlayer 1: whole.* off by 1.0e-03 .*\nlayer 2: whole.* within .*\n")


if __name__ == "__main__":
    main()
