#!/usr/bin/env python3
"""kvcapture.py --gguf, on small random models that the package gguf writes.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_gguf.py [-v] [Class.test]

capture_case.py says what that needs, besides the packages gguf and accelerate.
"""
import json
import re
import sys
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, ROPE, Case, arrays, build, manifest_of, said, main

try:
    import accelerate  # noqa: F401
    import gguf
except ImportError as missing:
    print(f"SKIPPED, nothing was tested: {missing}", file=sys.stderr)
    sys.exit(77)

import numpy as np
import torch
import transformers

import kvcapture
from gguf_file import GgufFile
from kvcapture import capture
from prompt_tokens import find_tokenizer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
TEXT = "the other then is there, and the hen in the tent is thin\n" * 3
WORDS = ["th", "he", "in", "en", "an", "the", "\u2581th", "\u2581the", "\u2581i", "nd", "er", "qz", "zq"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["\u2581", ",", "\n"]
PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + WORDS + LETTERS
KINDS = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(PIECES) - 259)
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def small_model():
    # As wide as a block of the quantized kinds.
    rope = {"rope_theta": 500.0} if ROPE == "rope_scaling" else {ROPE: {"rope_type": "default", "rope_theta": 500.0}}
    return build("llama", vocab_size=len(PIECES), hidden_size=64, intermediate_size=96, rms_norm_eps=1e-5, **rope)


def write_gguf(path, model, *, kind=None, without=(), bytewise=False, pieces=PIECES, change=lambda writer: None):
    """The model as llama.cpp's converter writes it; its matrices quantized where a kind is given."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(500.0)
    writer.add_tokenizer_model("gpt2" if bytewise else "llama")
    writer.add_token_list(pieces)
    writer.add_token_types(KINDS)
    if bytewise:
        writer.add_token_merges(["q z", "z q"])  # which the text has not
    else:
        writer.add_token_scores([-float(i) for i in range(len(PIECES))])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    change(writer)
    for name, weight in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            stem = f"blk.{layer}.{NAMES[stem]}"
        else:
            stem = NAMES[stem]
        if stem in without:
            continue
        x = weight.numpy()
        if stem.endswith(("attn_q", "attn_k")):  # halves to pairs
            heads = config.num_attention_heads if stem.endswith("attn_q") else config.num_key_value_heads
            x = x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        if kind is not None and x.ndim == 2 and x.shape[1] % 32 == 0:
            writer.add_tensor(f"{stem}.weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{stem}.weight", np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Gguf(Case):
    def setUp(self):
        super().setUp()
        self.model, self.file = small_model(), self.folder / "small.gguf"
        (self.folder / "text.txt").write_text(TEXT)
        self.arguments = ["--gguf", str(self.file), "--prompt", str(self.folder / "text.txt"), "--decode", str(DECODE),
                          "--out", str(self.dump)]

    def refused_with(self, pattern, *more):
        status, text = said(kvcapture.main, [*self.arguments, *more])
        text = re.sub(r"^reading model \(\d+ MB\)\n", "", text)
        self.assertEqual((status, text.count("\n")), (2, 1), text)
        self.assertRegex(text, f"^kvcapture: .*{pattern}")
        self.assertFalse(self.dump.exists())

    def test_is_the_model_that_was_written(self):
        write_gguf(self.file, self.model)
        status, text = said(kvcapture.main, self.arguments)
        self.assertEqual(status, 0, text)
        self.judge(self.dump)
        manifest, tokens = manifest_of(self.dump), json.loads((self.dump / "tokens.json").read_text())
        self.assertEqual((manifest["model"], manifest["rope"]["theta"], manifest["dtype"]), ("small.gguf", 500.0, None))
        self.assertEqual((manifest["rope"]["style"], manifest["rope"]["ggml_style"]), ("half", "interleaved"))
        self.assertEqual(arrays(self.dump, 0)["k"].dtype, np.float32)
        ids, length = tokens["ids"], manifest["prompt_len"]
        self.assertEqual(tokens["text"][0], "<s>")
        self.assertEqual("".join(tokens["text"][1:length]), " " + TEXT)
        self.assertEqual(tokens["text"][1:5], [" the", " ", "o", "the"])
        with capture(self.model, self.folder / "direct", prompt_len=length, decode=DECODE):
            kvcapture.feed(self.model, ids[:length], ids[length:], DECODE, None)
        for layer in range(3):
            direct = arrays(self.folder / "direct", layer)
            for name, array in arrays(self.dump, layer).items():
                self.assertTrue(np.array_equal(array, direct[name]), (layer, name))

    def test_the_file_is_parsed_once(self):
        for more in ([], ["--estimate"]):
            for bytewise in (False, True):
                with self.subTest(more=more, bytewise=bytewise):
                    write_gguf(self.file, self.model, bytewise=bytewise)
                    with mock.patch.object(gguf, "GGUFReader", wraps=gguf.GGUFReader) as parse:
                        status, text = said(kvcapture.main, [*self.arguments, "--any-prompt", "--force", *more])
                        self.assertEqual((status, parse.call_count), (0, 1), text)
                        self.assertIs(gguf.GGUFReader, parse)  # as it was

    def test_quantized(self):
        write_gguf(self.file, self.model, kind=gguf.GGMLQuantizationType.Q8_0)
        status, text = said(kvcapture.main, self.arguments)
        self.assertEqual(status, 0, text)
        self.judge(self.dump)
        theirs = self.model.model.layers[1].self_attn.o_proj.weight.detach().numpy().T
        mine = arrays(self.dump, 1)["wo"].reshape(theirs.shape)
        off = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        self.assertTrue(1e-4 < off < 1e-2, off)

    def test_without_what_begins_a_text_and_another_dtype(self):
        write_gguf(self.file, self.model, change=lambda writer: writer.add_add_bos_token(False))
        status, text = said(kvcapture.main, [*self.arguments, "--dtype", "bfloat16"])
        self.assertEqual(status, 0, text)
        self.judge(self.dump)
        self.assertEqual(json.loads((self.dump / "tokens.json").read_text())["text"][0], " the")

    def test_ids_have_the_vocabularys_texts(self):
        write_gguf(self.file, self.model)
        (self.folder / "ids.txt").write_text("259 260 3 264")
        self.arguments[2:4] = ["--ids", str(self.folder / "ids.txt")]
        self.assertEqual(said(kvcapture.main, self.arguments)[0], 0)
        self.assertEqual(json.loads((self.dump / "tokens.json").read_text())["text"][:4], ["th", "he", "\x00", "the"])

    def test_the_files_own_end_of_a_text(self):
        with torch.no_grad():
            self.model.lm_head.weight.zero_()
            self.model.lm_head.weight[269] = 1
            self.model.lm_head.weight[270] = -1  # one of the two is the likeliest, always
        for ends, eot, said_so in ((269, 270, True), (2, 1, False)):

            def change(writer, ends=ends, eot=eot):
                writer.kv_data[-1].pop("tokenizer.ggml.eos_token_id")
                writer.add_eos_token_id(ends)
                writer.add_eot_token_id(eot)

            write_gguf(self.file, self.model, change=change)
            status, text = said(kvcapture.main, [*self.arguments, "--force"])
            self.assertEqual(status, 0, text)
            self.assertEqual("the model ended the text at decoding step 0 of 6" in text, said_so, text)

    def test_a_tokenizer_that_splits_letters_is_refused(self):
        write_gguf(self.file, self.model, bytewise=True)
        self.refused_with("text.txt: expected a tokenizer that joins letters .*, found a token of its own for 1")
        status, text = said(kvcapture.main, [*self.arguments, "--any-prompt"])
        self.assertEqual(status, 0, text)

    def test_digits_that_are_taken_one_by_one(self):
        pieces = PIECES[:]
        pieces[-6:-3] = ["1", "\u0120", "\u0120\u0120"]  # in place of x to z
        for pre, expected in (("smollm", ["a", "  ", "1", "1"]), ("gpt-2", ["a", " ", " ", "1", "1"])):

            def change(writer, pre=pre):
                writer.add_tokenizer_pre(pre)
                writer.add_add_space_prefix(False)
                writer.kv_data[-1].pop("tokenizer.ggml.merges")
                writer.add_token_merges(["\u0120 \u0120", "t h"])

            write_gguf(self.file, self.model, bytewise=True, pieces=pieces, change=change)
            origin = {"pretrained_model_name_or_path": str(self.folder), "gguf_file": self.file.name}
            tokenizer = find_tokenizer(None, GgufFile(self.file), origin)
            self.assertEqual([tokenizer.text(i) for i in tokenizer.encode("a  11")], expected)

    def test_what_is_no_whole_file(self):
        self.refused_with("small.gguf: expected a GGUF file, found none")
        write_gguf(self.file, self.model)
        whole = self.file.read_bytes()
        for content in (b"", b"GGUF", b"no model" * 100, whole[:3000], whole[:len(whole) // 2], whole[:-100]):
            with self.subTest(size=len(content)):
                self.file.write_bytes(content)
                self.refused_with("small.gguf: expected a whole GGUF file, found")

    def test_weights_that_are_missing(self):
        write_gguf(self.file, self.model, without=("blk.1.attn_k", "blk.2.ffn_up"))
        self.refused_with(r"small.gguf: expected all of the model's weights, found none for 2 of them "
                          r"\(model.layers.1.self_attn.k_proj")

    def test_a_rotation_that_transformers_does_not_read(self):
        write_gguf(self.file, self.model, change=lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN))
        self.refused_with("small.gguf: expected no scaled rotation.*, found yarn")

    def test_an_architecture_that_transformers_does_not_know(self):
        write_gguf(self.file, self.model)
        self.file.write_bytes(self.file.read_bytes().replace(b"llama", b"lxama"))
        self.refused_with("lxama")

    def test_scores_that_are_missing(self):
        write_gguf(self.file, self.model, bytewise=True)
        self.file.write_bytes(self.file.read_bytes().replace(b"\4\0\0\0\0\0\0\0gpt2", b"\5\0\0\0\0\0\0\0llama"))
        self.refused_with(f"a score and a type for every piece, found {len(PIECES)}, 0, {len(PIECES)}")

    def test_no_package(self):
        write_gguf(self.file, self.model)
        for absent, expected in (({"gguf": None}, r"gguf \(pip install gguf\), found none$"),
                                 ({"gguf": None, "accelerate": None}, r"gguf, accelerate \(pip install gguf accelerate\), found none of them$")):
            for more in ([], ["--estimate"]):
                with mock.patch.dict(sys.modules, absent), mock.patch.object(transformers.AutoConfig, "from_pretrained") as read:
                    self.refused_with(f"packages: expected {expected}", *more)
                read.assert_not_called()


if __name__ == "__main__":
    main()
