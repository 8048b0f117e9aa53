"""Evictions as a plain loop over transformers' own cache: what leaves is gathered out of it, behind every chunk of the text.

What model_loop.py and kvvalidate.py --feedback are judged by; it shares nothing with them, nor with the library's policies.
"""

import numpy as np
import torch


def evicting(model, ids, chunks, leaving):
    """Logits [T, vocabulary] of the text, read in chunks of so many rows. leaving(layer, size, held, attention) says which
    positions leave every head once `size` are read, as many in each: held [heads] of positions ascending, attention
    [n_q, rows, held] of the chunk (of models with eager attention)."""
    cache, begin, logits, held = None, 0, [], {}
    eager = model.config._attn_implementation == "eager"
    for rows in chunks:
        at = torch.arange(begin, begin + rows)
        n = 0 if cache is None else cache.layers[0].keys.shape[2]
        seen = torch.cat((torch.ones(rows, n), torch.tril(torch.ones(rows, rows))), dim=1)
        mask = torch.where(seen > 0, 0.0, torch.finfo(torch.float32).min)[None, None].to(model.dtype)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids[begin : begin + rows]]), past_key_values=cache, position_ids=at[None],
                        attention_mask=mask, use_cache=True, output_attentions=eager)
        cache, begin = out.past_key_values, begin + rows
        logits.append(out.logits[0])
        for i, layer in enumerate(cache.layers):
            heads = layer.keys.shape[1]
            there = [np.append(head, at.numpy()) for head in held.get(i, [np.zeros(0, int)] * heads)]
            gone = leaving(i, begin, there, out.attentions[i][0].double().numpy() if eager else None)
            stay = [np.flatnonzero(~np.isin(one, left)) for one, left in zip(there, gone)]
            held[i] = [one[left] for one, left in zip(there, stay)]
            if len(stay[0]) == len(there[0]):
                continue
            rows_of = torch.from_numpy(np.stack(stay))[None, :, :, None]
            layer.keys = layer.keys.gather(2, rows_of.expand(-1, -1, -1, layer.keys.shape[3]))
            layer.values = layer.values.gather(2, rows_of.expand(-1, -1, -1, layer.values.shape[3]))
    return torch.cat(logits)


def writing(model, ids, quantized):
    """Logits [T, vocabulary] of the text, read a token at a time over transformers' own cache, into which quantized(layer, head, x, is_key)
    puts what is to be read of one key or value x [channels]."""
    from transformers import DynamicCache

    class Cache(DynamicCache):
        def update(self, keys, values, layer, *more, **named):
            kept = []
            for states, is_key in ((keys, True), (values, False)):
                x = states.clone()
                for head in range(x.shape[1]):
                    x[0, head, 0] = torch.from_numpy(quantized(layer, head, x[0, head, 0].double().numpy(), is_key))
                kept.append(x)
            return super().update(*kept, layer, *more, **named)

    cache, logits = Cache(config=model.config), []
    for at, token in enumerate(ids):
        with torch.no_grad():
            out = model(input_ids=torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[at]]), use_cache=True)
        logits.append(out.logits[0, -1])
    return torch.stack(logits)


class H2O:
    """The attention that every token got: of all rows so far, or in blocks of the block's rows; the last half of the budget
    stays."""

    def __init__(self, budget, l, in_blocks):
        self.budget, self.l, self.in_blocks, self.sums, self.recent = budget, l, in_blocks, {}, (budget + 1) // 2

    def score(self, layer, head, held, attention):
        mine = attention.sum(axis=(0, 1))
        if self.in_blocks:
            return mine
        sums = self.sums.setdefault((layer, head), {})
        for p, more in zip(held, mine):
            sums[p] = sums.get(p, 0.0) + more
        return np.array([sums[p] for p in held])

    def __call__(self, layer, size, held, attention):
        if self.in_blocks and size > self.l:
            return [[]] * len(held)
        left = []
        for head, (there, mine) in enumerate(zip(held, np.split(attention, len(held)))):
            score = self.score(layer, head, there, mine)
            may_leave = np.arange(len(there) - self.recent)
            lowest = may_leave[np.argsort(score[may_leave], kind="stable")]
            left.append(there[lowest[: max(len(there) - self.budget, 0)]])
        return left


class TOVA(H2O):
    """The attention of the last row alone; nothing is sure to stay."""

    def __init__(self, budget, l, in_blocks):
        super().__init__(budget, l, in_blocks)
        self.recent = 0

    def score(self, layer, head, held, attention):
        return attention[:, -1].sum(axis=0)


def chunks_of(phase, l, T):
    """Of "decode" or "blockwise:N"."""
    if phase == "decode":
        return [l] + [1] * (T - l)
    block = int(phase.partition(":")[2])
    return [min(block, l - begin) for begin in range(0, l, block)] + [T - l]
