"""A model reads a prompt and decodes behind it, through its own generate(). The names of caches, positions and masks change between
versions of transformers; generate() passes them on under the right names."""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterable, Iterator

import torch
from transformers import GenerationConfig, GenerationMixin

from model_attention import input_device


def feed(model: torch.nn.Module, ids: list[int], given: list[int], decode: int, seed: int | None,
         ends: Iterable[int] = (), enough: Callable[[list[int]], bool] | None = None) -> int | None:
    """Feeds the prompt, then `decode` tokens one by one: the given ones, then the likeliest or sampled ones. No token ends the
    decoding early, unless `enough` is given: then one of `ends` does, or enough(chosen tokens).
    Returns the first step at which the model chose one of `ends`, if any."""
    prompt = torch.tensor([ids], device=input_device(model))
    if not getattr(model, "can_generate", bool)():  # an encoder has no cache
        with torch.no_grad():
            model(input_ids=prompt)
        return None
    ends, said, ended, stopped = set(ends), [], None, False
    generator = None if seed is None else torch.Generator().manual_seed(seed)

    def choose(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [1, vocabulary] of which only the next token's is finite."""
        nonlocal ended, stopped
        step = len(said)
        if step == decode:  # nothing is fed behind the last step
            return scores
        logits = scores[0].float().cpu()
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator) if generator else logits.argmax()
        token = given[step] if step < len(given) else int(chosen)
        if ended is None and step >= len(given) and token in ends:
            ended = step
        stopped = enough is not None and (ended is not None or enough(said))
        said.append(token)
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([token], device=scores.device), 0.0)

    def stop(ids: torch.Tensor, _scores: object, **_) -> torch.Tensor:
        """Called before the chosen token is fed."""
        return torch.tensor([stopped], device=ids.device)

    steps = GenerationConfig(max_new_tokens=decode + 1, do_sample=False, use_cache=True)
    with without_defaults(model):
        model.generate(prompt, generation_config=steps, logits_processor=[choose], stopping_criteria=[stop])
    return ended


@contextlib.contextmanager
def without_defaults(model: torch.nn.Module) -> Iterator[None]:
    """Context: generate() ignores the model's own settings (penalties, ends, a static cache, ...), and no model drops its cache on
    the way. Phi-3 would, to read the prompt anew when its rotation changes; it gets the inputs of other models."""
    own, prepare = model.generation_config, model.prepare_inputs_for_generation

    @functools.wraps(prepare)
    def prepared(*args, **given: Any) -> dict[str, Any]:
        inputs = prepare(*args, **given)
        handed_on = {id(x) for x in inputs.values()}
        dropped = any(hasattr(x, "get_seq_length") and id(x) not in handed_on for x in given.values())
        return GenerationMixin.prepare_inputs_for_generation(model, *args, **given) if dropped else inputs

    model.generation_config, model.prepare_inputs_for_generation = GenerationConfig(), prepared
    try:
        yield
    finally:
        model.generation_config = own
        del model.prepare_inputs_for_generation  # the class' is left
