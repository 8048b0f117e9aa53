"""What compressing a KV cache costs, exactly: the library of the program `kvreplay`, on arrays in memory.

    m = kvreplay.token_metrics(q, k, v, window=32, metrics=("attn", "joint", "exact_remove"))
    r = kvreplay.evict(q, k, v, prompt_len, policy="snapkv", keep=0.2)
    e = kvreplay.output_error(q, k, v, prompt_len, keep=r)
    c = kvreplay.compensate(q, k, v, prompt_len, keep=r, method="fit")
    run = kvreplay.analyze("DUMP", out="results")            # a whole dump, as `kvreplay analyze` does it

One layer at a time: q [n_q, T_q, d] after RoPE, the queries of the last T_q positions; k [n_kv, T, d]; v [n_kv, T, d_v];
query head h reads KV head h // (n_q / n_kv). Positions 0 .. prompt_len - 1 are the prompt (all T, if it is not said): the
candidates for eviction; what follows are decoding steps. Arrays are NumPy's, torch's or any with DLPack or the buffer
protocol, of float16, bfloat16, float32 or float64, with or without a batch of 1; results are NumPy arrays. Names, defaults,
figures and refusals (InputError) are those of the command line.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ContextManager, Mapping, Optional, Union

from . import _core
from ._core import InputError, threads, why_no_cuda
from ._budgets import Allocation, allocate
from ._channels import Interaction, Selection, channel_interaction, select_channels
from ._compensations import Compensation, ErrorSplit, compensate
from ._conform import Conformance, conform
from ._dashboard import Dashboard, show
from ._evictions import Eviction, OutputError, Score, evict, output_error
from ._growing import GrowingCaches
from ._layer import Dump, Layer, Positions
from ._options import listed, takes
from ._program import Comparison, analyze, compare, program
from ._recommend import Recommended, recommend
from ._tokens import TokenMetrics, token_metrics
from . import results
from .results import Results, ResultsError

__version__: str = _core.__version__
open_results = results.open_results = takes()(results.open_results)

if TYPE_CHECKING:
    from ._kept_of import KeptOf
    from ._press import CachePress


AS_EVICT = ("keep", "sigma", "budget", "semantics", "phase", "window", "sinks", "recent", "pool", "on", "by", "backend", "precision", "threads")
AS_COMPENSATE = ("reference", "reference_rows")


@takes()
def set_threads(threads: Optional[int] = None) -> None:
    """Sets how many threads a call that names none uses. threads=None: all cores."""
    _core.set_threads(threads)


@takes(listed("evict", AS_EVICT, phase="prefill or blockwise:N") + listed("compensate", AS_COMPENSATE))
def press(policy: Union[str, "os.PathLike[str]", Results, None] = None, compression_ratio: Optional[float] = None, *,
          score: Union[Score, Mapping[str, Score], None] = None, keep: Union[float, int, str, None] = None,
          sigma: Optional[float] = None, budget: Union[int, str, None] = None, budgets: Any = None,
          semantics: Optional[str] = None, phase: Optional[str] = None, window: Optional[Positions] = None,
          sinks: Optional[Positions] = None, recent: Optional[Positions] = None, pool: Optional[str] = None,
          on: Optional[str] = None, by: Optional[str] = None, compensate: Optional[str] = None,
          reference: Optional[str] = None, reference_rows: Optional[int] = None, case: Optional[str] = None,
          backend: Optional[str] = None, precision: Optional[str] = None, threads: Optional[int] = None) -> CachePress:
    """A press of kvpress: `with kvreplay.press("h2o+joint", 0.8)(model): model.generate(..)`.

    It keeps what `kvreplay evict --policy h2o+joint --sigma 0.8 --semantics kvpress` keeps, not what evict keeps by default,
    which is the paper's semantics: press("h2o+joint", 0.8, semantics="paper") keeps those tokens.

    policy, score and the other options are evict()'s: press(score=function) keeps what it ranks highest. How much is kept is one of
    compression_ratio, the share evicted of every head (0.5, if nothing is said), keep, sigma, budget, and budgets
    [layers, n_kv], the tokens kept of each head, as allocate() gives them.

    compensate: a method of compensate(), as "fit", fitted to `reference` rows: behind the prompt the kept values (and keys, where
    it changes them) are replaced, and every later step has the biases on its logits, in the model's dtype. Needs eager or sdpa attention.

    Or policy is results, opened or a folder's path, and case the name of files in it: "snapkv-paper-prefill-179-fit" of
    layer_XX/compensated, "snapkv-lu-0.8" of layer_XX/kept, "think-0.5" of layer_XX/channels. The model then holds of that dump's
    prompt, which it must read, what the files have.

    Or policy is a recipe that kvreplay recommend wrote, press("recipe.json"): in every layer and head its policy, ratio and format.

    .kept[layer]: the positions that the caches hold, bool [batch, n_kv, l]; .compensations[layer]: a Compensation for each prompt.
    Needs torch, transformers and kvpress 0.5.
    """
    given = {name: value for name, value in locals().items() if value is not None and name != "policy"}
    try:
        from . import _press
    except ImportError as missing:
        raise InputError(f"press: expected torch and kvpress (pip install kvpress), found: {missing}") from missing
    if case is not None:
        require_nothing_else(given, "case", "results and a case")
        return _press.case_press(policy if hasattr(policy, "folder") else open_results(policy), case)
    if isinstance(policy, (str, os.PathLike)) and str(policy).endswith(".json"):
        require_nothing_else(given, "", "a recipe")
        return _press.recipe_press(str(policy))
    if policy is not None and not isinstance(policy, str):
        raise InputError(f"policy: expected text, or results and a case, found {type(policy).__name__}")
    return _press.policy_press(policy, given)


def require_nothing_else(given: Mapping[str, Any], but: str, what: str) -> None:
    for name in given:
        if name != but:
            raise InputError(f"press: expected no {name} beside {what}, found one")


@takes()
def kept_of(model: Any) -> ContextManager[KeptOf]:
    """What the caches of a running model, or one cache of transformers, keep of a prompt, for `kvreplay conform --kept`:

        with kvreplay.kept_of(model) as kept, press(model):   # any press of kvpress, or a cache class of your own
            model.generate(ids, past_key_values=cache)
        kept.save("kept.npy")                                 # bool [layers, n_kv, l]
        kept.save_cache("held")                               # the keys and values themselves, for --cache

    It notes the keys and values that caches are given (batches of one prompt), and finds those that they hold once the prompt is
    read. kept.layers[layer]: ascending positions of every KV head; InputError where a cache holds neither the keys nor the values
    that it was given (conform --cache finds the positions of what is quantized). What kvpress hides in a cache (AdaKV) is known
    of a model alone. Needs torch and transformers.
    """
    try:
        from . import _kept_of
    except ImportError as missing:
        raise InputError(f"kept_of: expected torch and transformers, found: {missing}") from missing
    return _kept_of.kept_of(model)


__all__ = ["Allocation", "Comparison", "Compensation", "Conformance", "Dashboard", "Dump", "ErrorSplit", "Eviction", "GrowingCaches", "InputError", "Interaction", "Layer", "OutputError",
           "Recommended", "ResultsError", "Selection", "TokenMetrics", "allocate", "analyze", "channel_interaction", "compare", "compensate", "conform", "evict", "kept_of",
           "open_results", "output_error", "press", "program", "recommend", "select_channels", "set_threads", "show", "threads", "token_metrics", "why_no_cuda"]
