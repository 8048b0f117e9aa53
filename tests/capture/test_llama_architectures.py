#!/usr/bin/env python3
"""`kvreplay capture` of a small random GGUF file of every architecture in its table.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_llama_architectures.py [-v] [Class.test]

Skipped as test_llama_capture.py.
"""
import json

from test_llama_capture import architectures, program

from capture_case import Case, arrays, main, manifest_of, turned
from test_kvcapture_gguf import KINDS, PIECES, TEXT

import gguf
import numpy as np

WIDTH, HEADS, KV_HEADS, HEAD, INNER, LAYERS, WINDOW, EXPERTS = 64, 4, 2, 16, 96, 2, 8, 2
POST_NORMS = ("post_attention_norm", "post_ffw_norm")
# Facts beside the common tensors and keys, and the manifest's facts without which o no longer follows.
MODELS = {
    "llama": {"halves": False},
    "qwen2": {"biases": ("attn_q", "attn_k", "attn_v")},
    "qwen3": {"head_norms": True},
    "gemma2": {"norms": POST_NORMS, "window": WINDOW, "soft_cap": 3.0, "facts": ("sliding_window", "logit_softcap")},
    "gemma3": {"norms": POST_NORMS, "head_norms": True, "window": WINDOW, "facts": ("sliding_window",)},
    "phi3": {"fused": True, "turned": 8},
    "gpt-oss": {"norms": ("post_attention_norm",), "window": WINDOW, "experts": True, "yarn": True, "sinks": True,
                "biases": ("attn_q", "attn_k", "attn_v", "attn_output"), "facts": ("sliding_window", "sink_logit")},
}


def write(path, name, *, fused=False, head_norms=False, norms=(), biases=(), window=0, soft_cap=0.0, turned=HEAD, experts=False, yarn=False,
          sinks=False, halves=True, facts=()):
    random, writer = np.random.default_rng(5), gguf.GGUFWriter(path, name)

    def add(tensor, *shape, scale=0.3):
        writer.add_tensor(tensor, (random.standard_normal(shape) * scale).astype(np.float32))

    def product(stem, inner, outer):
        add(f"{stem}.weight", outer, inner)
        if stem.rsplit(".", 1)[-1] in biases:
            add(f"{stem}.bias", outer)

    def norm(stem, size):
        writer.add_tensor(f"{stem}.weight", (1 + 0.1 * random.standard_normal(size)).astype(np.float32))

    writer.add_name("small")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(turned)
    writer.add_rope_freq_base(500.0)
    if window:
        writer.add_sliding_window(window)
    if name == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    if soft_cap:
        writer.add_attn_logit_softcapping(soft_cap)
    if experts:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(INNER)
    if yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_types(KINDS)
    writer.add_token_scores([-float(i) for i in range(len(PIECES))])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    add("token_embd.weight", len(PIECES), WIDTH)
    if name != "gemma2":
        add("output.weight", len(PIECES), WIDTH)
    norm("output_norm", WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm", WIDTH)
        if fused:
            product(f"{block}.attn_qkv", WIDTH, (HEADS + 2 * KV_HEADS) * HEAD)
        else:
            for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS), ("attn_v", KV_HEADS)):
                product(f"{block}.{part}", WIDTH, heads * HEAD)
        product(f"{block}.attn_output", HEADS * HEAD, WIDTH)
        if head_norms:
            norm(f"{block}.attn_q_norm", HEAD)
            norm(f"{block}.attn_k_norm", HEAD)
        for each in norms:
            norm(f"{block}.{each}", WIDTH)
        if sinks:
            add(f"{block}.attn_sinks.weight", HEADS, scale=1.5)
        if experts:
            for stem, inner, outer in (("ffn_gate", WIDTH, INNER), ("ffn_up", WIDTH, INNER), ("ffn_down", INNER, WIDTH)):
                add(f"{block}.{stem}_exps.weight", EXPERTS, outer, inner)
                add(f"{block}.{stem}_exps.bias", EXPERTS, outer)
            add(f"{block}.ffn_gate_inp.weight", EXPERTS, WIDTH)
            add(f"{block}.ffn_gate_inp.bias", EXPERTS)
            continue
        norm(f"{block}.ffn_norm", WIDTH)
        if name != "phi3":
            product(f"{block}.ffn_gate", WIDTH, INNER)
        product(f"{block}.ffn_up", WIDTH, INNER * (2 if name == "phi3" else 1))
        product(f"{block}.ffn_down", INNER, WIDTH)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


class Architectures(Case):
    def setUp(self):
        super().setUp()
        self.file, self.text = self.folder / "small.gguf", self.folder / "text.txt"
        self.text.write_text(TEXT)

    def capture(self, name, *more):
        write(self.file, name, **MODELS[name])
        done = program("capture", self.file, "--prompt", self.text, "--decode", 6, "--out", self.dump, "--force", "--dtype", "float32", *more)
        self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
        return manifest_of(self.dump)

    def test_the_table_is_tested(self):
        self.assertEqual(architectures(), list(MODELS))

    def test_o_follows_and_every_fact_matters(self):
        for name, model in MODELS.items():
            with self.subTest(name):
                manifest = self.capture(name)
                self.assertGreater(manifest["prompt_len"], 2 * WINDOW)
                self.judge(self.dump)
                for fact in model.get("facts", ()):
                    self.wrong_without(fact)
                self.assertEqual(manifest["rope"]["style"], "half" if model.get("halves", True) else "interleaved")
                self.assertEqual(manifest["rope"]["rotary_dim"], model.get("turned", HEAD))
                self.assertEqual([fact for fact in ("sliding_window", "logit_softcap", "sink_logit") if fact in manifest],
                                 [fact for fact in ("sliding_window", "logit_softcap", "sink_logit") if fact in model.get("facts", ())])

    def test_the_rotation_is_undone_by_the_manifest(self):
        """Layer 0's keys of equal tokens are equal before the rotation, whatever stands before them."""
        for name in MODELS:
            with self.subTest(name):
                manifest = self.capture(name)
                ids, k = np.array(json.loads((self.dump / "tokens.json").read_text())["ids"]), arrays(self.dump, 0)["k"]
                token, count = max(((i, np.sum(ids == i)) for i in set(ids)), key=lambda found: found[1])
                at = np.flatnonzero(ids == token)
                self.assertGreater(count, 2)
                first = np.zeros_like(k)
                first[:, at] = k[:, at]
                unturned = self.undone(first, manifest["rope"])[:, at]
                self.assertLess(np.abs(unturned - unturned[:, :1]).max(), 1e-4 * np.abs(k[:, at]).max())
                self.assertGreater(np.abs(k[:, at] - k[:, at[:1]]).max(), 1e-2 * np.abs(k[:, at]).max())

    @staticmethod
    def undone(k, rope):
        factor = rope.get("attention_factor", 1.0)
        back = {**rope, "attention_factor": 1 / factor}
        back["inv_freq"] = -np.array(rope["inv_freq"] if "inv_freq" in rope else [rope["theta"] ** (-2 * c / rope["rotary_dim"])
                                                                                 for c in range(rope["rotary_dim"] // 2)])
        back.pop("theta", None)
        return turned(k, back, 0)

    def test_wo_is_the_file_s(self):
        for name in ("llama", "gpt-oss"):
            manifest = self.capture(name, "--wo")
            self.assertNotIn("wo_note", manifest)
            tensor = next(each for each in gguf.GGUFReader(self.file).tensors if each.name == "blk.1.attn_output.weight")
            expected = np.array(tensor.data).reshape(WIDTH, HEADS, HEAD).transpose(1, 2, 0)
            self.assertTrue(np.array_equal(arrays(self.dump, 1)["wo"], expected))

    def test_another_architecture_is_one_line(self):
        write(self.file, "mamba")
        done = program("capture", self.file, "--prompt", self.text, "--out", self.dump)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertFalse(self.dump.exists())


if __name__ == "__main__":
    main()
