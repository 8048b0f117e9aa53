"""The attention of a Hugging Face model: which function it is, its shapes, window, mask and rotation, and how another
function stands in for it."""
from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Callable, Iterable, Iterator, Tuple

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dump_check import visible
from dump_files import Shape, require

# Of keys: half or interleaved, attention factor, inv_freq [rotary_dim / 2] (none: they do not turn).
Turn = Tuple[str, float, Tuple[float, ...]]
# Of keys that turn, by what they are rounded to: bfloat16 cosines and keys come to 5e-3; a wrong rotation is off by
# about 1.
PROBE_TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-3}


def decoder_of(model: torch.nn.Module) -> torch.nn.Module:
    """The part of a model that makes hidden states of token ids; get_decoder() finds by name, which may be that of an
    output layer."""
    try:
        named = model.get_decoder()
    except (AttributeError, NotImplementedError):
        named = None
    candidates = (named, getattr(model, "base_model", None), model)
    return next((part for part in candidates if reads_tokens(part)), model)


def reads_tokens(part: torch.nn.Module | None) -> bool:
    layers = part is not None and any(isinstance(module, torch.nn.ModuleList) for module in part.modules())
    return layers and "input_ids" in inspect.signature(part.forward).parameters


# Keys of these models have channels c and c + d/2 turned together, and llama.cpp's converter puts them side by side.
INTERLEAVED_IN_GGML = ("llama", "mistral", "mixtral", "ministral3", "granite", "granitemoe", "olmo", "smollm3", "arcee")


def interleaved_in_ggml(config: Any) -> bool:
    return config.model_type in INTERLEAVED_IN_GGML


def cache_for(config: Any) -> dict[str, bool]:
    """What a pass over new tokens alone is called with: no cache, but where layers read another's through one."""
    return {"use_cache": bool(getattr(config, "num_kv_shared_layers", 0))}


def input_device(model: torch.nn.Module) -> torch.device:
    """Where token ids are looked up."""
    try:
        return model.get_input_embeddings().weight.device
    except (AttributeError, NotImplementedError):
        return next(model.parameters()).device


def own_attention(implementation: str, module: torch.nn.Module) -> Callable:
    """What the module's forward() would call by itself; eager attention is the one beside it."""
    own = ALL_ATTENTION_FUNCTIONS.get(implementation)
    own = own or inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
    require(own, f"attention of {type(module).__name__}", "an eager_attention_forward beside it", "none")
    return own


_STANDING_IN: dict[int, Callable] = {}  # by the id of the configuration that a model's attention modules share


def _attention(module, query, key, value, attention_mask, **kwargs):
    numbered = getattr(module, "layer_idx", None) is not None
    require(numbered, type(module).__name__, "an attention that knows its layer's number, layer_idx", "none")
    return _STANDING_IN[id(module.config)](module, query, key, value, attention_mask, kwargs)


@contextlib.contextmanager
def stand_in(model: torch.nn.Module, attend: Callable) -> Iterator[str]:
    """Inside, attend(module, query, key, value, mask, kwargs) is the attention of the model's decoder; yields the name
    of the implementation that it stands in for."""
    config = model.config.get_text_config()
    decoder = decoder_of(model)
    configs = {id(config): config for config in (getattr(m, "config", config) for m in decoder.modules())}
    require(not _STANDING_IN.keys() & configs.keys(), "capture", "one of a model at a time", "another inside it")
    forget_lengths(decoder)
    own = config._attn_implementation
    require(own in ("eager", "sdpa"), "attention implementation", "eager or sdpa (attn_implementation=...)", own)
    AttentionInterface.register(f"kvcapture_{own}", _attention)
    # Without this there is no causal mask.
    AttentionMaskInterface.register(f"kvcapture_{own}", ALL_MASK_ATTENTION_FUNCTIONS[own])
    with contextlib.ExitStack() as stack:
        for key, config in configs.items():
            _STANDING_IN[key] = attend
            stack.callback(_STANDING_IN.pop, key)
            stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            config._attn_implementation = f"kvcapture_{own}"
        yield own


def window_of(module: torch.nn.Module, called: dict[str, Any]) -> int | None:
    """How many positions a row of an attention sees, as it was called."""
    return int(called.get("sliding_window", getattr(module, "sliding_window", None)) or 0) or None


def require_no_dropout(layer: int, called: dict[str, Any]) -> None:
    dropout = called.get("dropout")
    require(not dropout, f"layer {layer}", "no dropout in attention (model.eval())", dropout)


def is_causal(module: torch.nn.Module, called: dict[str, Any]) -> bool:
    """Does sdpa, called like this without a mask, mask what is ahead?"""
    causal = called.get("is_causal")
    return getattr(module, "is_causal", True) if causal is None else causal


class Rounded(torch.autograd.Function):
    """x in a coarser dtype, and back; its derivative is 1."""

    @staticmethod
    def forward(_, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(_, gradient: torch.Tensor):
        return gradient, None


def rounded(dtype: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """What a dump's files hold of these, with which the model goes on."""
    return [Rounded.apply(x, getattr(torch, dtype)) for x in tensors]


def choose_layers(config: Any, layers: Iterable[int] | None, prompt_len: int, decode: int,
                  window: int | None) -> list[int]:
    """The layers to capture; refuses what the text model's configuration already tells."""
    require(prompt_len >= 1 and decode >= 0, "capture", "prompt_len of at least 1 and decode of at least 0",
            f"{prompt_len} and {decode}")
    require(window is None or 1 <= window <= prompt_len, "window", f"1 to the prompt's {prompt_len} positions", window)
    decoder_only = not getattr(config, "is_encoder_decoder", False)
    require(decoder_only, f"model type {config.model_type}", "a decoder-only model", "an encoder and a decoder")
    count = config.num_hidden_layers
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    require(chosen and 0 <= chosen[0] <= chosen[-1] < count, "layers", f"some of 0 to {count - 1}", chosen)
    kinds = layer_kinds(config)
    other = [f"{i} ({kinds[i]})" for i in chosen if not is_softmax(kinds[i])]
    require(not other, "layers", "softmax attention (choose with --layers)", ", ".join(other))
    longest, T = longest_text(config), prompt_len + decode
    require(T <= longest, "prompt and decoding steps", f"at most the model's {longest} positions", T)
    return chosen


def longest_text(config: Any) -> float:
    """The model's longest text, in positions. Dynamic NTK multiplies the trained length by its factor."""
    longest = getattr(config, "max_position_embeddings", None) or np.inf
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    dynamic = scaling.get("rope_type", scaling.get("type")) == "dynamic"
    return longest * max(scaling.get("factor") or 1.0, 1.0) if dynamic else longest


def layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return list(kinds or ["full_attention"] * config.num_hidden_layers)


def is_softmax(kind: str) -> bool:
    """Has a layer of this one of a configuration's kinds an attention by softmax?"""
    return kind in ("attention", "hybrid") or kind.endswith("_attention") and not kind.startswith("linear")


def config_shape(config: Any) -> Shape:
    """What the configuration says of the shapes, for an estimate without the model."""
    n_q = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_q
    d = d_v = getattr(config, "head_dim", None) or config.hidden_size // n_q
    if getattr(config, "kv_lora_rank", None):  # latent attention: keys and values are expanded to all heads
        n_kv, d, d_v = n_q, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    return Shape(n_q, n_kv, d, d_v, config.hidden_size)


def residual_block(model: torch.nn.Module, attention: torch.nn.Module) -> torch.nn.Module | None:
    """The entry of the decoder's list of layers that holds an attention: what it is called with is the residual stream
    that the attention's output is added to, whatever norms stand before or behind the attention."""
    path = next((name for name, module in model.named_modules() if module is attention), "")
    while "." in path:
        path, _, last = path.rpartition(".")
        entry = model.get_submodule(f"{path}.{last}")
        if entry is not attention and isinstance(model.get_submodule(path), torch.nn.ModuleList):
            return entry
    return None


def sees_ahead(module: torch.nn.Module, mask: torch.Tensor | None, called: dict[str, Any]) -> bool:
    """Is it an encoder's attention, by its own word and its mask?"""
    if is_causal(module, called) or mask is None:
        return not is_causal(module, called)
    row = mask[0, 0, 0, 1:]
    return bool((row if row.dtype == torch.bool else row == 0).any())


def check_mask(where: str, mask: torch.Tensor | None, by_itself: bool, first: int, rows: int, keys: int,
               window: int | None, causal: bool = True) -> None:
    """Refuses a mask [1, heads or 1, rows, at least keys] that is not the causal one, or else that of all keys (within
    the sliding window). The rows are positions first, first + 1, ..., the keys those up to the last row's. No mask
    stands for all keys, or for the causal ones where `by_itself` (what sdpa does). Up to 16 rows are looked at."""
    if mask is None:
        all_seen = (rows == 1 or by_itself and rows == keys or not causal) and keys <= (window or keys)
        kind = "causal mask" if causal else "mask"
        return require(all_seen, where, f"a {kind}{' of a sliding window' if window else ''}", "none")
    picked = np.unique(np.linspace(0, rows - 1, 16).astype(int))
    seen = mask[0][:, torch.as_tensor(picked, device=mask.device), :keys].detach().cpu()
    if seen.dtype != torch.bool:
        masks = ((seen == 0) | (seen <= torch.finfo(seen.dtype).min / 2)).all()
        require(masks, where, "a mask", "a bias on the logits")
        seen = seen == 0
    position = first + rows - keys + np.arange(keys)
    expected_rows = visible(position, first + picked, window, causal, two_sided=True)
    for at, expected, found in zip(first + picked, expected_rows, seen.numpy().swapaxes(0, 1)):
        want, count = position[expected], found[0].sum()
        require((found == expected).all(), f"{where} at position {at}", f"positions {want[0]} to {want[-1]}",
                f"{count} of them (padding, a prefix or chunks?)")


def rotations(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """The modules that make cosines and sines of positions, each with the name of its buffer of frequencies."""
    return [(owner, name) for owner in model.modules() for name, _ in owner.named_buffers(recurse=False)
            if name.endswith("inv_freq") and "original" not in name]


def forget_lengths(model: torch.nn.Module) -> None:
    """Resets rotations that depend on the longest text read so far, as in a model that has read none."""
    for owner, name in rotations(model):
        original = getattr(owner, name.replace("inv_freq", "original_inv_freq"), None)
        if torch.is_tensor(original):
            owner.register_buffer(name, original.to(getattr(owner, name).device, copy=True), persistent=False)  # some are written in place
        for read in [key for key in vars(owner) if key.endswith("max_seq_len_cached")]:
            setattr(owner, read, owner.original_max_seq_len)


def rotation_now(owner: torch.nn.Module, buffer: str, style: str) -> Turn:
    """What the frequencies in one of the model's buffers are; they may change with the length of the prompt."""
    inv_freq = getattr(owner, buffer).detach().double().flatten().tolist()
    return style, float(getattr(owner, buffer.replace("inv_freq", "attention_scaling"), 1.0)), tuple(inv_freq)


def fit_rotation(key: torch.Tensor, value: torch.Tensor, model: torch.nn.Module,
                 dtype: str) -> tuple[Callable[[], Turn] | None, str]:
    """How key [1, n_kv, n, d] of equal rows of a layer turns from each position to the next, or None and why that is not
    known. value [1, n_kv, n, d_v] tells whether the rows were equal. dtype: what both are rounded to."""
    k, v = (x[0].detach().double().cpu().numpy() for x in (key, value))
    tolerance = PROBE_TOLERANCES[dtype]

    def error(rotation: Callable[[], Turn]) -> float:
        style, _, inv_freq = rotation()
        r = 2 * len(inv_freq)
        if r > k.shape[2]:
            return np.inf
        first, second = (slice(0, r // 2), slice(r // 2, r)) if style == "half" else (slice(0, r, 2), slice(1, r, 2))
        pairs = k[..., first] + 1j * k[..., second]
        turned = pairs[:, :1] * np.exp(1j * np.arange(k.shape[1])[:, None] * np.array(inv_freq))
        still = k[..., r:] - k[:, :1, r:]  # channels behind the pairs stay as they are
        return np.hypot(np.linalg.norm(turned - pairs), np.linalg.norm(still)) / np.linalg.norm(k)

    if not (np.linalg.norm(v - v[:, :1]) <= tolerance * np.linalg.norm(v) and k.any()):
        return None, "'s keys are made of more than their own position's state, and a probe cannot tell how they turn"
    turning = [functools.partial(rotation_now, owner, name, style)
               for owner, name in rotations(model) for style in ("half", "interleaved")]
    best = min([lambda: ("half", 1.0, ()), *turning], key=error)
    if error(best) <= tolerance:
        return best, ""
    return None, "'s keys change with their position, by none of the model's rotations of their first channels"


def to_file(x: torch.Tensor, dtype: str, where: str) -> np.ndarray:
    x = x.detach().to(getattr(torch, dtype))
    require(torch.isfinite(x).all(), where, f"numbers that are finite in {dtype}", "a NaN or an infinity")
    x = x.cpu().contiguous()
    return x.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else x.numpy()
