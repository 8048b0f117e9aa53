#!/usr/bin/env python3
"""Prints the numbers that tests/analysis/golden_channels_test.cpp holds: the sample dump's layer 2, from the definitions alone.

Nothing of the program enters; golden_channels.py compares everything, this a handful that costs no more than a test may.
"""
import numpy as np
from golden_channels_cache import CacheCheck
from golden_channels_choice import Problem, Slack, channels_pruned, error_of, outputs, row_sets
from golden_dump import SAMPLE, load_layer
from golden_evictions import Report
from golden_evictions_policies import Attention

LAYER, WINDOW, RATIO = 2, 32, 0.6


def mask(pruned):
    """Hexadecimal, channel 0 the lowest bit."""
    return f"{sum(1 << int(c) for c in np.flatnonzero(pruned)):016x}"


def channels(layer, semantics, methods):
    recent = 0 if semantics == "kvpress" else 32
    m, rows, every = layer.l - recent, row_sets(layer, WINDOW), np.arange(layer.T)
    units = [[h] for h in range(layer.n_q)] if semantics == "official" else [list(layer.heads_of(g)) for g in range(layer.n_kv)]
    scored = layer.l if semantics == "official" else m
    for method in methods:
        for u, unit in enumerate(units):
            k = layer.k[unit[0] // layer.group]
            problem = Problem(layer, unit, rows["window"], k[:scored], np.arange(layer.l), m, Slack())
            pruned = problem.select(method, channels_pruned(RATIO, k.shape[1], semantics))[0]
            measured = Problem(layer, unit, rows["window"], k[:m], np.arange(layer.l), m, Slack())
            cut, change, whole = k.copy(), 0.0, 0.0
            cut[:m, pruned] = 0.0
            for h in unit:
                full = Attention(layer, h, rows["future"], every).o
                change += ((outputs(layer, h, rows["future"], every, cut, layer.v[h // layer.group]) - full) ** 2).sum()
                whole += (full**2).sum()
            error = error_of(measured.H, pruned)
            print(f'{{"{semantics}", "{method}", {u}, 0x{mask(pruned)}, {error:.12g}, {change / whole:.12g}}},')


def caches(layer):
    for channels, bits in (("iap:0.5", 4), ("", 2), ("output:0.4", None)):
        given = {"channels": channels, "bits": bits, "group": 32, "residual": 128}
        check = CacheCheck(Report(), SAMPLE, SAMPLE, LAYER, given, None, Slack())
        found = check.figures(np.ones((layer.n_kv, layer.l), bool))[0]
        for g in range(layer.n_kv):
            error, size = found["future", "output_error", g][0], found["bytes", g][0]
            print(f'{{"{channels}", "{bits or ""}", {g}, {error:.12g}, {size:.12g}}},')


layer = load_layer(SAMPLE, LAYER)
channels(layer, "paper", ["magnitude", "think", "iap", "exchange", "output", "rope_pairs"])
channels(layer, "official", ["think"])
channels(layer, "kvpress", ["think"])
caches(layer)
