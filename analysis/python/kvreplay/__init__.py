"""What compressing a KV cache costs, exactly: the library of the program `kvreplay`, on arrays in memory.

    m = kvreplay.token_metrics(q, k, v, window=32, metrics=("attn", "joint", "exact_remove"))
    r = kvreplay.evict(q, k, v, prompt_len, policy="snapkv", keep=0.2)
    e = kvreplay.output_error(q, k, v, r, prompt_len=prompt_len)
    run = kvreplay.analyze("DUMP", out="results")            # a whole dump, as `kvreplay analyze` does it

One layer at a time: q [n_q, T_q, d] after RoPE, the queries of the last T_q positions; k [n_kv, T, d]; v [n_kv, T, d_v];
query head h reads KV head h // (n_q / n_kv). Positions 0 .. prompt_len - 1 are the prompt (all T, if it is not said): the
candidates for eviction; what follows are decoding steps. Arrays are NumPy's, torch's or any with DLPack or the buffer
protocol, of float16, bfloat16, float32 or float64, with or without a batch of 1; results are NumPy arrays. Names, defaults,
figures and refusals (InputError) are those of the command line.
"""
from ._core import InputError, __version__, set_threads, threads, why_no_cuda
from ._budgets import Allocation, allocate
from ._channels import Interaction, Selection, channel_interaction, select_channels
from ._evictions import Eviction, OutputError, evict, output_error
from ._layer import Dump, Layer
from ._program import Comparison, analyze, compare, program
from ._tokens import TokenMetrics, token_metrics
from .results import ResultsError, open_results


def press(policy, compression_ratio=0.5, *, budgets=None, **options):
    """A press of kvpress that keeps what evict() keeps: `with kvreplay.press("h2o+joint", 0.8)(model): model.generate(..)`.

    policy and options are evict()'s, the semantics those of kvpress if none are given. compression_ratio: the share evicted of
    every head; or budgets [layers, n_kv], the tokens kept of each, as allocate() gives them. What was kept of each layer is in
    .kept[layer], bool [batch, n_kv, l]. Needs torch, transformers and kvpress 0.5.
    """
    try:
        from ._press import Press
    except ImportError as missing:
        raise InputError(f"press: expected torch and kvpress (pip install kvpress), found: {missing}") from missing
    return Press(policy, compression_ratio, budgets, {"semantics": "kvpress", **options})


__all__ = ["Allocation", "Comparison", "Dump", "Eviction", "InputError", "Interaction", "Layer", "OutputError", "ResultsError",
           "Selection", "TokenMetrics", "allocate", "analyze", "channel_interaction", "compare", "evict", "open_results",
           "output_error", "press", "program", "select_channels", "set_threads", "threads", "token_metrics", "why_no_cuda"]
