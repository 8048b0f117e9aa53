"""Gradients with respect to the attention's outputs, beside q, k, v and o of a dump: kvcapture.py --gradients.

Rows R, adjacent, are fed to the model again in one pass, in which they attend to the prompt's keys and values
(constants) and to their own (differentiable). g = d J / d o_i^h, before the output projection, is the total
derivative: through all that is downstream, and through keys and values that later rows of R see. J_s = sum over R of
log p_t(y_t) for the labels y of sample s, drawn from the model's own p_t. One graph, one backward pass a sample; each
is on the disk before the next.
"""
from __future__ import annotations

import contextlib
import inspect
import os
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import torch

from dump_files import require
from gradient_progress import Dump, GradientProgress, Job, plan
from model_attention import (cache_for, check_mask, decoder_of, input_device, is_causal, is_softmax, layer_kinds,
                             own_attention, require_no_dropout, rounded, stand_in, to_file, window_of)

# What o of the rows fed again may be off by, of a layer's norm: one pass rounds otherwise than many, and every layer
# passes that on. On SmolLM2-135M, Gemma 3 270M and random models of every kind it came to 4e-2, 6e-3 and 2e-6.
REPEATED = {"bfloat16": 0.1, "float16": 2e-2, "float32": 1e-3}


def write_gradients(model: torch.nn.Module, dump: str | os.PathLike, *, samples: int = 0, rows: str = "future",
                    nll: bool = False, seed: int = 0, resume: bool = False,
                    progress: Callable[[str], object] = lambda line: None) -> None:
    """Adds g_future.npy and g_window.npy (`samples` of each that `rows` names, as --rows does), and g_nll.npy where
    nll is true, to a whole dump of this model, whose tokens.json says what was read. resume: goes on with what an
    interrupted call of the same request left, and leaves what is there. Raises CaptureError; nothing has its final
    name before all is written."""
    dump = Dump(Path(dump))
    jobs = plan(samples, rows, nll, dump.prompt_len, dump.T, dump.T_q)
    count = model.config.get_text_config().num_hidden_layers
    require(dump.layers[-1] < count, dump.folder, f"a dump of layers 0 to {count - 1}", f"layer {dump.layers[-1]}")
    state = GradientProgress(dump, jobs, samples, seed, resume)
    if not state.left:
        return state.finish()
    again = FedAgain(model, dump.dtype, dump.layers)
    progress(f"reading the prompt's {dump.prompt_len} positions")
    if dump.layers == list(range(count)):
        again.take(dump)
    else:
        again.read(dump.ids[:dump.prompt_len])
    for job in state.left:
        write_rows(again, dump, job, state, seed, progress)
    state.finish()


def write_rows(again: FedAgain, dump: Dump, job: Job, state: GradientProgress, seed: int,
               progress: Callable[[str], object]) -> None:
    """One forward pass, and the backward passes that are not done; its graph does not outlive it."""
    logits, outputs = again.feed(dump.ids[job.first:job.end], job.first)
    check_repeated(dump, job, outputs)
    labels = state.labels(job, lambda: sampled_labels(logits, job.samples, [seed, job.first]))
    state.begin(job)
    chances, followers = logits.detach().float().softmax(-1), dump.ids[job.first + 1:job.end + 1]
    for number in range(state.done(job), job.passes):
        progress(f"{job.kind} rows: gradient {number + 1} of {job.passes}")
        sample = number - job.nll  # the first pass is g_nll's, where that is wanted
        if sample >= 0:
            name, cotangent = f"g_{job.kind}", labels_gradient(chances, labels[sample])
        else:
            name, cotangent = "g_nll", -labels_gradient(chances, followers)
        gradients = torch.autograd.grad(logits, outputs, cotangent.to(logits.dtype),
                                        retain_graph=number + 1 < job.passes)
        state.write(job, name, sample if sample >= 0 else None,
                    (to_file(g[0].transpose(0, 1), dump.dtype, f"layer {i}, {name}")
                     for i, g in zip(dump.layers, gradients)))


class FedAgain:
    """A model that has read a prompt, and to which some of its last positions, or what followed, are fed again."""

    def __init__(self, model: torch.nn.Module, dtype: str, layers: list[int], what: str = "gradients"):
        """dtype: what q, k and v are rounded to. layers: those whose outputs are asked for. what: it is for."""
        self.model, self.dtype, self.layers, self.what = model, dtype, layers, what
        config = model.config.get_text_config()
        self.count, self.cache = config.num_hidden_layers, cache_for(config)
        other = [f"{i} ({kind})" for i, kind in enumerate(layer_kinds(config)) if not is_softmax(kind)]
        placed, name = "position_ids" in inspect.signature(model.forward).parameters, type(model).__name__
        require(placed, what, "a model that is told its positions", f"{name} without position_ids")
        require(not other, what, "softmax attention in every layer", ", ".join(other))
        self.prompt: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by layer: keys, values [1, n_kv, T, channels]
        self.outputs: dict[int, torch.Tensor] = {}  # by layer: [1, rows, n_q, d_v]
        self.first = 0  # position of the rows fed again

    def read(self, ids: list[int]) -> None:
        with stand_in(self.model, self._read) as self.own, torch.no_grad():
            decoder_of(self.model)(input_ids=self._tensor(ids), **self.cache)
        missing = ", ".join(str(i) for i in range(self.count) if i not in self.prompt)
        require(not missing, self.what, "attention through the transformers attention interface in every layer",
                f"none in {missing}")

    def take(self, dump: Dump) -> None:
        """From a dump of all layers: what reading its prompt gives."""
        device, dtype = input_device(self.model), self.model.dtype
        for layer in dump.layers:
            prompt = (dump.rows(layer, name, slice(dump.prompt_len)) for name in ("k", "v"))
            self.prompt[layer] = tuple(torch.from_numpy(x)[None].to(device, dtype) for x in prompt)

    def feed(self, ids: list[int], first: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Positions first, first + 1, ...: logits [rows, vocabulary], and the layers' outputs [1, rows, n_q, d_v] that
        they are a function of."""
        self.first, self.outputs = first, {}
        position = self._tensor(list(range(first, first + len(ids))))
        with stand_in(self.model, self._attend) as self.own, torch.enable_grad(), frozen(self.model):
            logits = self.model(input_ids=self._tensor(ids), position_ids=position, **self.cache).logits[0]
        return logits, [self.outputs.pop(i) for i in self.layers]

    def _tensor(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor([numbers], device=input_device(self.model))

    def _read(self, module, query, key, value, mask, kwargs):
        query, key, value = rounded(self.dtype, query, key, value)
        index, own, rows = module.layer_idx, own_attention(self.own, module), query.shape[2]
        require_no_dropout(index, kwargs)
        by_itself = self.own == "sdpa" and is_causal(module, kwargs)
        check_mask(f"layer {index}, attention mask", mask, by_itself, 0, rows, rows, window_of(module, kwargs))
        self.prompt[index] = key.clone(), value.clone()
        return own(module, query, key, value, mask, **kwargs)

    def _attend(self, module, query, key, value, _mask, kwargs):
        query, key, value = rounded(self.dtype, query, key, value)
        index, own, rows = module.layer_idx, own_attention(self.own, module), query.shape[2]
        require_no_dropout(index, kwargs)
        key, value = (torch.cat([past[:, :, :self.first], x], 2) for past, x in zip(self.prompt[index], (key, value)))
        position = torch.arange(self.first + rows, device=query.device)
        window = window_of(module, kwargs) or len(position)
        seen = (position <= position[self.first:, None]) & (position > position[self.first:, None] - window)
        if self.own == "eager":  # eager attention adds its mask to the logits
            seen = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill(~seen, -torch.inf)
        own_mask = {**kwargs, "is_causal": False} if "is_causal" in kwargs else kwargs
        output, weights = own(module, query, key, value, seen[None, None], **own_mask)
        if index in self.layers:
            if not output.requires_grad:  # the first: what is before it plays no part
                output = output.detach().requires_grad_()
            self.outputs[index] = output
        return output, weights


@contextlib.contextmanager
def frozen(model: torch.nn.Module) -> Iterator[None]:
    """No gradients of the weights inside."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def check_repeated(dump: Dump, job: Job, outputs: list[torch.Tensor]) -> None:
    """Refuses rows that do not come out as they were captured."""
    for layer, output in enumerate(outputs):
        rows = range(job.first - (dump.T - dump.T_q), job.end - (dump.T - dump.T_q))
        captured = dump.rows(layer, "o", rows)
        repeated = output[0].detach().transpose(0, 1).double().cpu().numpy()
        off, tolerance = np.linalg.norm(repeated - captured) / np.linalg.norm(captured), REPEATED[dump.dtype]
        require(off <= tolerance, f"{dump.layer(layer)}: o of the {job.kind} rows when they are fed again",
                f"what was captured, within {tolerance:g} of its norm",
                f"{off:.1e} (another model, dtype or attention, or a rotation that changed?)")


def sampled_labels(logits: torch.Tensor, samples: int, seed: list[int]) -> np.ndarray:
    """[samples, rows]: tokens drawn from the softmax of logits [rows, vocabulary], a generator for each sample."""
    chance = np.array([np.random.default_rng([*seed, sample]).random(len(logits)) for sample in range(samples)])
    labels = np.empty((samples, len(logits)), int)
    for row, z in enumerate(logits.detach().float().cpu() if samples else ()):
        below = z.double().softmax(-1).cumsum(-1).numpy()
        labels[:, row] = np.searchsorted(below / below[-1], chance[:, row], side="right").clip(max=len(z) - 1)
    return labels


def labels_gradient(chances: torch.Tensor, labels: np.ndarray | list[int]) -> torch.Tensor:
    """[rows, vocabulary]: of the sum of the labels' log-probabilities, with respect to the logits; chances: the logits'
    softmax. Rows behind the last label have none."""
    count = len(labels)
    gradient = -chances
    gradient[count:] = 0
    gradient[range(count), torch.as_tensor(labels, dtype=torch.long)] += 1
    return gradient
