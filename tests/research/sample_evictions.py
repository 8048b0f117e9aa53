"""Of tokens and evictions, for PAPERS.md."""
from __future__ import annotations

import numpy as np

from sample import agreement, arrays, divided, errors, evicted, found, listed, percent, rho, rows_of, short

TAYLOR = ("value", "key", "joint")


def windows_of(results, folder):
    """The numbers of rows that scored, as agreement.csv has them; one without a name where it has no such column."""
    rows = rows_of(results / folder / "agreement.csv")
    return list(dict.fromkeys(row["window"] for row in rows)) if "window" in rows[0] else [None]


def in_window(window):
    return {} if window is None else {"window": window}


def recall(results, score, window, reserve):
    """The mean over heads of how many of the next step's 40 costliest tokens it finds."""
    return np.mean(agreement(results, "obcache-2", score, "oracle_next", "recall@40", reserve=reserve,
                             **in_window(window)))


@found("obcache 2a")
def figure_2a(results):
    windows = windows_of(results, "obcache-2")
    curves = ((score, " / ".join(f"{recall(results, score, window, '0'):.3f}" for window in windows))
              for score in ("exact_joint", "joint", "key", "value", "attn"))
    return f"{' / '.join(window or '32' for window in windows)} rows: {'; '.join(f'`{score}` {curve}' for score, curve in curves)}"


@found("obcache 2b")
def figure_2b(results):
    windows = windows_of(results, "obcache-2")
    said = []
    for window in dict.fromkeys(("32" if "32" in windows else windows[0], windows[-1])):
        pairs = ((score, " -> ".join(f"{recall(results, score, window, reserve):.3f}" for reserve in ("0", "20")))
                 for score in ("joint", "key", "value", "attn"))
        said.append(f"{window or '32'} rows: {listed(pairs)}")
    return "; ".join(said)


@found("obcache taylor")
def taylor(results):
    window = in_window("32" if "32" in windows_of(results, "obcache-2") else None)
    return "median rank correlation " + ", ".join(
        f"`{score}` with `{reference}` {np.median(each):.2f}" for score, reference in (
            ("value", "exact_remove"), ("key", "exact_key"), ("key", "exact_remove"), ("joint", "exact_joint"),
            ("joint", "exact_remove"))
        for each in [agreement(results, "obcache-2", score, reference, "spearman", reserve="0", **window)])


def over_base(results, folder):
    """Output errors of scores over their base's, by budget: h2o and snapkv in OBCache's windows."""
    values = evicted(results, folder, layer="")
    budgets = dict.fromkeys(budget for *_, budget, _ in values)
    error = {(policy, budget): value for (policy, _, _, budget, _), value in values.items()}
    said = []
    for base, own in (("h2o", "[window=16,recent=16]"), ("snapkv", "[window=16,pool=7]")):
        names = [name for name in ("attn_sq", *TAYLOR) if (f"{base}+{name}{own}", next(iter(budgets))) in error]
        said.append(f"over `{base}{own}` " + ", ".join(
            f"`+{name}` " + " / ".join(f"{error[f'{base}+{name}{own}', budget] / error[base + own, budget]:.2f}" for budget in budgets)
            for name in names))
    return "; ".join(said)


@found("obcache own")
def obcache_own(results):
    return over_base(results, "obcache-own")


@found("obcache group")
def obcache_group(results):
    return over_base(results, "obcache-group")


@found("obcache decode")
def obcache_decode(results):
    return errors(results, "obcache-decode", "256", None, phase="decode")


@found("obcache ada")
def obcache_ada(results):
    return divided(results, "obcache-ada", "0.8")


# CAOTE


@found("caote theorem")
def theorem(results):
    caote, removed = (arrays(results, "caote-theorem", name) for name in ("caote", "exact_remove"))
    apart = np.max(np.max(np.abs(caote**2 - removed), axis=-1) / np.max(removed, axis=-1))
    return f"its square is `exact_remove` to {max(apart, 1e-12):.0e} of a head's largest"


def won(results, folder, metric, of, over, **equal):
    """Layers in which one policy has less."""
    values = evicted(results, folder, metric=metric, **equal)
    pairs = [(value, values[(over, *key[1:])]) for key, value in values.items() if key[0] == of and key[4]]
    return sum(a < b for a, b in pairs), len(pairs)


@found("caote layers")
def caote_layers(results):
    return "layers with less at 0.8: " + ", ".join(
        "`{}+{}` {}/{}".format(base, score, *won(results, "caote-layers", "output_error", f"{base}+{score}", base))
        for base in ("h2o", "tova", "snapkv") for score in ("caote", "fastcaote"))


@found("caote blocks")
def caote_blocks(results):
    values = {key[:3]: value for key, value in evicted(results, "caote-blocks", layer="").items()}
    phases = ("blockwise:32", "blockwise:128", "decode")
    return "; ".join(f"`{policy}` " + " / ".join(short(values[policy, "paper", phase]) for phase in phases)
                     for policy in ("tova", "tova+caote", "snapkv", "snapkv+caote", "h2o", "h2o+caote"))


@found("fastcaote")
def fastcaote(results):
    each = rho(arrays(results, "caote-fast", "caote"), arrays(results, "caote-fast", "fastcaote"))
    return f"rank correlation {np.min(each):.2f} in the worst head, {np.median(each):.2f} in the median"


def top_share(results, folder, share=0.2):
    """[layers]: of the attention summed over the rows, what the best share of a head's tokens holds, the mean over heads."""
    weights = np.sort(arrays(results, folder, "attn"), axis=-1)[..., ::-1]
    count = round(share * weights.shape[-1])
    return (weights[..., :count].sum(-1) / weights.sum(-1)).mean(1)


@found("h2o hitters")
def heavy_hitters(results):
    return f"a fifth of the tokens holds {percent(top_share(results, 'attention').mean())} of the attention"


@found("pyramidkv funnel")
def funnel(results):
    return f"what a fifth of the tokens holds, layer by layer: {' / '.join(map(percent, top_share(results, 'attention')))}"


@found("h2o halves")
def h2o_halves(results):
    return "0.8 evicted: " + errors(results, "h2o", "0.8", None)


@found("snapkv hits")
def snapkv_hits(results):
    recalls = ((share, np.mean(agreement(results, "snapkv-window", "attn", "oracle_importance", f"recall@{share}")))
               for share in ("5%", "10%", "20%"))
    return "of the tokens that matter most to the steps it finds: " + ", ".join(
        f"{value:.2f} of the first {share.replace('%', ' %')}" for share, value in recalls)


@found("snapkv pooling")
def snapkv_pooling(results):
    return "0.8 evicted: " + errors(results, "snapkv", "0.8", None)


@found("tova eighth")
def tova_eighth(results):
    values = evicted(results, "tova", layer="")
    return ", ".join(f"`{policy}` {short(value)}" for (policy, _, phase, *_), value in values.items() if phase == "decode")


@found("tova layer")
def tova_layer(results):
    values = evicted(results, "tova-layer", layer="", budget="0.8")
    return ", ".join(f"{semantics} {short(value)}" for (_, semantics, *_), value in values.items())


@found("streaming sinks")
def streaming_sinks(results):
    values = evicted(results, "streaming", layer="")
    return ", ".join(f"`{policy}` {short(value)}" for (policy, *_), value in values.items())


@found("protection")
def protection(results):
    """Of policies without and with tokens kept at both ends of the cache."""
    error = {policy: value for (policy, *_), value in evicted(results, "protection", layer="").items()}
    bare, kept = ({policy.partition("[")[0]: value for policy, value in error.items() if ("sinks=12" in policy) == ends} for ends in (False, True))
    spread = " -> ".join(f"{max(of.values()) / min(of.values()):.2g}" for of in (bare, kept))
    return listed((name, f"{short(bare[name])} -> {short(kept[name])}") for name in kept) + f"; the largest over the smallest {spread}"


@found("keydiff attention")
def keydiff_attention(results):
    each = rho(arrays(results, "attention", "keydiff"), arrays(results, "attention", "attn"))
    return f"rank correlation with the attention sum {np.median(each):.2f} in the median head, {np.min(each):.2f} to {np.max(each):.2f}"


@found("keydiff blocks")
def keydiff_blocks(results):
    values = evicted(results, "keydiff", layer="")
    budgets = dict.fromkeys(budget for *_, budget, _ in values)
    return "; ".join(f"{budget}: " + ", ".join(f"{semantics} {short(value)}" for (_, semantics, _, at, _), value
                                               in values.items() if at == budget) for budget in budgets)


@found("expected future")
def expected_future(results):
    said = []
    for reference in ("oracle_importance", "oracle_future"):
        values = agreement(results, "expected", "expected_attention", reference, "spearman")
        beside = agreement(results, "expected", "attn", reference, "spearman")
        said.append(f"`{reference}` {np.median(values):.2f} (`attn` {np.median(beside):.2f})")
    return "median rank correlation with " + ", ".join(said)


@found("twinkv ranks")
def twinkv(results):
    same, later = (np.median(agreement(results, "twinkv", "attn", reference, "spearman"))
                   for reference in ("exact_remove", "oracle_future"))
    return f"median rank correlation of `attn` with the exact removal: {same:.2f} on the same 32 rows, {later:.2f} on the decoding steps"
