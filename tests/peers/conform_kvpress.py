#!/usr/bin/env python3
"""Does `kvreplay conform` acquit kvpress' presses, and name the fault of presses that have one?

  conform_kvpress.py --gguf FILE --prompt TEXT [--prompt-len 2000] [--dtype float32|float16] [--only genuine|faults] [--kvreplay PATH]

A model reads the prompt, captured as a dump. It then reads it again with every press at every ratio, and what the caches hold
(kvreplay.kept_of) is judged against the dump: genuine presses may differ in ties alone. Presses with a planted fault, in every
layer, in one, and in every other one, must be told from them, with the fault among the first three readings, or in the verdict.
Exit status 1 where one is not.

Needs `pip install -r tests/peers/requirements.txt -r data/capture/requirements.txt`, and a build of kvreplay with its Python package.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "data" / "capture")]
try:
    import kvpress
    import kvreplay
    import torch
    import transformers
except ImportError as missing:
    print(f"conform_kvpress: expected the packages of tests/peers/requirements.txt and kvreplay, found: {missing}", file=sys.stderr)
    sys.exit(2)
import kvcapture  # noqa: E402
from kvvalidate import load_model, tokenizer_of  # noqa: E402
from presses import PRESSES  # noqa: E402

RATIOS = (0.25, 0.5, 0.8)
STEPS = 16  # decoding steps of the dump, which costs are measured on
FEWEST = 65  # tokens of a prompt: SnapKVPress needs more than its window
SHOWN = 3  # readings among which a fault has to be
# Of kvreplay's policies, kvpress' press; only eager attention hands ObservedAttentionPress its weights.
GENUINE: dict[str, Callable[[float], kvpress.BasePress]] = {
    **{name: PRESSES[name] for name in ("streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention")},
    "score:lagkv": kvpress.LagKVPress,
    "snapkv~ada": PRESSES["ada_snapkv"],
    "snapkv~pyramid": PRESSES["pyramid_snapkv"],
}
PLACES: dict[str, Callable[[int], bool]] = {"every layer": lambda layer: True, "layer 3": lambda layer: layer == 3, "every other": lambda layer: layer % 2 == 1}


class Faulty(kvpress.BasePress):
    """A press that is another in some layers."""

    def __init__(self, right: kvpress.BasePress, wrong: Callable, where: Callable[[int], bool]) -> None:
        self.right, self.wrong, self.where = right, wrong, where

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if not self.where(module.layer_idx):
            return self.right.compress(module, hidden_states, keys, values, attentions, kwargs)
        return self.wrong(self.right, module, hidden_states, keys, values, attentions, kwargs)


def taken(keys, values, indices):
    """The rows at indices [batch, n_kv, n]."""
    at = indices.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1])
    return keys.gather(2, at).contiguous(), values.gather(2, at).contiguous()


def budget(press, keys) -> int:
    return int(keys.shape[2] * (1 - press.compression_ratio))


def sign_turned(press, module, hidden_states, keys, values, attentions, kwargs):
    """AdaKV that prunes the largest scores."""
    scores = press.press.score(module, hidden_states, keys, values, attentions, kwargs)
    batch, heads, length = scores.shape
    pruned = heads * (length - budget(press, keys))
    indices = torch.topk(scores.reshape(batch, -1), pruned, dim=1).indices.flatten()
    module.masked_key_indices = (torch.zeros_like(indices), indices // length, indices % length)
    return keys, values


def without_sinks(press, module, hidden_states, keys, values, attentions, kwargs):
    length, kept = keys.shape[2], budget(press, keys)
    return keys[:, :, length - kept :], values[:, :, length - kept :]


def never_run(press, module, hidden_states, keys, values, attentions, kwargs):
    return keys, values


def scored_in_16_bits(press, module, hidden_states, keys, values, attentions, kwargs):
    scores = press.score(module, hidden_states, keys.bfloat16(), values, attentions, kwargs)
    return taken(keys, values, scores.topk(budget(press, keys), dim=-1).indices)


def window_twice(press, module, hidden_states, keys, values, attentions, kwargs):
    scores = press.score(module, hidden_states, keys, values, attentions, kwargs)
    return taken(keys, values, scores.topk(budget(press, keys) - press.window_size, dim=-1).indices)


def snapkv_scores(press, module, hidden_states, keys, kwargs, pool, over_heads):
    """SnapKVPress.score() with another pooling, and another reduction over the query heads."""
    weights = press.compute_window_attention(module, hidden_states, keys, press.window_size, kwargs["position_embeddings"])
    scores = pool(weights.mean(-2))
    scores = over_heads(scores.view(keys.shape[0], keys.shape[1], -1, scores.shape[-1]))
    return torch.nn.functional.pad(scores, (0, press.window_size), value=scores.max().item() + 1)


def average(scores):
    return torch.nn.functional.avg_pool1d(scores, kernel_size=5, padding=2, stride=1)


def pooled_by_max(press, module, hidden_states, keys, values, attentions, kwargs):
    scores = snapkv_scores(press, module, hidden_states, keys, kwargs, lambda s: torch.nn.functional.max_pool1d(s, 5, 1, 2), lambda s: s.mean(2))
    return taken(keys, values, scores.topk(budget(press, keys), dim=-1).indices)


def largest_of_heads(press, module, hidden_states, keys, values, attentions, kwargs):
    scores = snapkv_scores(press, module, hidden_states, keys, kwargs, average, lambda s: s.amax(2))
    return taken(keys, values, scores.topk(budget(press, keys), dim=-1).indices)


def turned_to_the_front(press, module, hidden_states, keys, values, attentions, kwargs):
    """Keys as if what is left of the prompt were its beginning."""
    scores = press.score(module, hidden_states, keys, values, attentions, kwargs)
    indices = scores.topk(budget(press, keys), dim=-1).indices.sort(-1).values
    return kvpress.KeyRerotationPress.rerotate_keys(module, indices, keys), taken(keys, values, indices)[1]


def in_2_bits(x, dim):
    """Groups of 32 along a dimension between their ends, in 4 steps."""
    x = x.transpose(dim, -1)
    whole = x.shape[-1] // 32 * 32
    groups = x[..., :whole].unflatten(-1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = ((high - low) / 3).clamp_min(1e-30)
    stored = (low + step * torch.floor((groups - low) / step + 0.5)).flatten(-2)
    return torch.cat((stored, x[..., whole:]), -1).transpose(dim, -1)


def in_2_not_4_bits(press, module, hidden_states, keys, values, attentions, kwargs):
    return in_2_bits(keys, 2), in_2_bits(values, 3)


@dataclass
class Fault:
    """What is claimed of a press, and what its fault is called."""

    name: str
    policy: str
    ratio: float
    right: Callable[[float], kvpress.BasePress]
    wrong: Callable
    named: str  # a pattern of what has to be said
    cache: bool = False  # it is seen in the keys and values
    options: tuple[str, ...] = ()


FAULTS = (
    Fault("AdaKV's sign turned", "snapkv~ada", 0.5, GENUINE["snapkv~ada"], sign_turned, "sign of the score turned"),
    Fault("sinks dropped", "streaming", 0.5, GENUINE["streaming"], without_sinks, "first tokens not protected"),
    Fault("Knorm never run", "knorm", 0.5, GENUINE["knorm"], never_run, "nothing (was )?evicted"),
    Fault("scores in 16 bits", "knorm", 0.5, GENUINE["knorm"], scored_in_16_bits, "scores in b?float16"),
    Fault("the window counted twice", "snapkv", 0.8, GENUINE["snapkv"], window_twice, "counted twice"),
    Fault("max for average pooling", "snapkv", 0.8, GENUINE["snapkv"], pooled_by_max, r"pool = max:5"),
    Fault("the largest query head", "snapkv", 0.5, GENUINE["snapkv"], largest_of_heads, "largest score of the query heads"),
    Fault("positions begin anew", "snapkv", 0.5, GENUINE["snapkv"], turned_to_the_front, "turned to positions 0 to", cache=True),
    Fault("2 bits for 4", "none", 0.0, GENUINE["knorm"], in_2_not_4_bits, "in 2 bits", cache=True, options=("--bits", "4", "--residual", "0")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gguf", type=Path, required=True)
    add("--prompt", type=Path, required=True)
    add("--prompt-len", type=int, default=2000)
    add("--dtype", choices=("float32", "float16"), default="float32")
    add("--only", choices=("genuine", "faults"))
    add("--kvreplay", default=os.environ.get("KVREPLAY", "kvreplay"))
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    model = load_model(args.gguf, args.dtype, None)
    ids = read_prompt(args.gguf, args.prompt, args.prompt_len)
    with tempfile.TemporaryDirectory() as work:
        return judge_all(Judge(model, ids, Path(work), args.kvreplay), args)


def judge_all(judge: Judge, args) -> int:
    accused = missed = judged = planted = 0
    if args.only != "faults":
        for policy, make in GENUINE.items():
            for ratio in RATIOS:
                verdict = judge(policy, ratio, make(ratio))
                judged, accused = judged + 1, accused + (not verdict["ok"])
                print(f"genuine {policy} {ratio}: {verdict['text']}", flush=True)
    if args.only != "genuine":
        for fault in FAULTS:
            for place, where in PLACES.items():
                verdict = judge(fault.policy, fault.ratio, Faulty(fault.right(fault.ratio), fault.wrong, where), fault.cache, fault.options)
                found = found_in(verdict, fault.named)
                planted, missed = planted + 1, missed + (not found)
                print(f"{'named' if found else 'NOT NAMED'} {fault.name}, {place}: {said(verdict)}", flush=True)
        planted, missed = planted + 3, missed + one_cut_for_all(judge)
    print(f"{judged} genuine runs, {accused} accused; {planted} planted faults, {missed} not named")
    return 1 if accused or missed else 0


def one_cut_for_all(judge: Judge) -> int:
    """Budgets that give the same cache: how many of three are not noticed."""
    missed = 0
    for policy in ("snapkv", "h2o", "knorm"):
        file = judge.kept_by(GENUINE[policy](0.5), policy)
        verdicts = judge.conform(policy, ("--kept", f"{file},{file}", "--sigma", "0.5,0.9"))
        found = any(verdict["verdict"] == "another budget gave the same" for verdict in verdicts)
        missed += not found
        print(f"{'named' if found else 'NOT NAMED'} one cut whatever the budget, {policy}: {said(verdicts[-1])}", flush=True)
    return missed


def said(verdict) -> str:
    return "; ".join([verdict["text"], *(reading["text"] for reading in verdict.get("readings", ())[:SHOWN])])


def found_in(verdict, named) -> bool:
    return not verdict["ok"] and re.search(named, said(verdict)) is not None


class Judge:
    """A dump of what the model saw of a prompt, and what conform says of the model's caches behind presses."""

    def __init__(self, model, ids, work, program) -> None:
        self.model, self.ids, self.work, self.program = model, torch.tensor([ids]), work, program
        with kvcapture.capture(model, work / "dump", prompt_len=len(ids), decode=STEPS):
            kvcapture.feed(model, ids, given=[], decode=STEPS, seed=None)

    def kept_by(self, press, policy, cache=False) -> Path:
        self.model.set_attn_implementation("eager" if policy == "h2o" else "sdpa")
        with torch.no_grad(), kvreplay.kept_of(self.model) as kept, press(self.model):
            self.model(self.ids, past_key_values=transformers.DynamicCache())
        for module in self.model.modules():  # what AdaKV hides
            if getattr(module, "masked_key_indices", None) is not None:
                module.masked_key_indices = None
        file = self.work / ("cache" if cache else "kept.npy")
        (kept.save_cache if cache else kept.save)(file)
        return file

    def __call__(self, policy, ratio, press, cache=False, options=()):
        file = self.kept_by(press, policy, cache)
        given = ("--cache", file) if cache else ("--kept", file)
        sigma = () if policy == "none" else ("--sigma", ratio)
        return self.conform(policy, (*given, *sigma, *options))[0]

    def conform(self, policy, options):
        run = subprocess.run([self.program, "conform", self.work / "dump", "--as", policy, "--semantics", "kvpress", "--json", *map(str, options)],
                             capture_output=True, text=True)
        if run.returncode not in (0, 1):
            raise SystemExit(f"conform ended with {run.returncode}: {run.stderr}")
        return json.loads(run.stdout)["cases"]


def read_prompt(path, prompt, length):
    """Token ids, as kvcapture.py makes them."""
    ids = tokenizer_of(str(path)).own.encode(prompt.read_text(encoding="utf-8"))
    if not FEWEST <= length <= len(ids):
        raise SystemExit(f"--prompt-len: expected {FEWEST} to the {len(ids)} tokens of {prompt}, found {length}")
    return ids[:length]


if __name__ == "__main__":
    sys.exit(main())
