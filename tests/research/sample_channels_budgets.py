"""Of channels and budgets, for PAPERS.md."""
from __future__ import annotations

import numpy as np

from sample import budgets, divided, evicted, found, listed, percent, rows_of, short


def channel_values(results, folder, metric, rows):
    """{(method, ratio, layer): value}"""
    wanted = rows_of(results / folder / "channels.csv", metric=metric, rows=rows, kv_head="")
    return {(r["method"], r["ratio"], r["layer"]): float(r["value"]) for r in wanted}


def gains(results, folder, metric, rows, method):
    """The share of ThinK's error that a method saves: of the model by ratio, and where it saves any."""
    values = {key[1:]: value for key, value in channel_values(results, folder, metric, rows).items() if key[0] == method}
    model = " / ".join(percent(value, sign="+") for (_, layer), value in values.items() if not layer)
    layers = [value for (_, layer), value in values.items() if layer]
    return f"{model}, in {sum(value > 0 for value in layers)} of {len(layers)} layers and ratios"


@found("iap interaction")
def interaction(results):
    rows = rows_of(results / "iap" / "channels.csv", metric="off_diagonal_share")
    shares = [float(row["value"]) for row in rows if row["kv_head"]]
    return f"{percent(np.mean(shares))} of H lies off its diagonal, {percent(min(shares))} to {percent(max(shares))} by head"


@found("iap spread")
def spread_of_channels(results):
    said = []
    for rows, name in (("window", "window"), ("future", "decoding steps")):
        mean, spread = (np.array([np.load(layer / "channels" / f"query_{rows}_{name}.npy") for layer in
                                  sorted((results / "iap").glob("layer_*"))]) for name in ("mean", "std"))
        said.append(f"{percent(np.mean(spread > np.abs(mean)))} of the channels ({name})")
    return "the standard deviation is larger than the mean in " + ", ".join(said)


def by_layer(values, digits=0):
    return " / ".join(percent(value, digits) for _, value in sorted(values.items(), key=lambda item: int(item[0])))


@found("iap depth")
def interaction_by_layer(results):
    rows = rows_of(results / "iap" / "channels.csv", metric="off_diagonal_share", kv_head="")
    return by_layer({row["layer"]: float(row["value"]) for row in rows if row["layer"]})


@found("iap gain by layer")
def gain_by_layer(results):
    values = channel_values(results, "iap", "reconstruction_gain", "window")
    return "; ".join(f"{ratio}: " + by_layer({layer: value for (method, at, layer), value in values.items()
                                              if (method, at) == ("iap", ratio) and layer}) for ratio in ("0.4", "0.5", "0.6"))


@found("iap gain")
def iap_gain(results):
    return gains(results, "iap", "reconstruction_gain", "window", "iap")


@found("iap output")
def iap_output(results):
    return gains(results, "iap", "output_gain", "future", "iap")


@found("iap protect")
def protect(results):
    values = channel_values(results, "iap-protect", "relative_reconstruction_error", "future")
    swept = [f"iap[protect={share}]" for share in ("0:0", "3:7", "5:10")]
    return ", ".join(f"{ratio}: " + " / ".join(short(values[method, ratio, ""]) for method in swept)
                     for method, ratio, layer in values if method == "think" and not layer)


@found("iap tokens")
def iap_tokens(results):
    """SnapKV and H2O, then channels: the output error without / ThinK / IAP."""
    folders = {"0.4": ("policies", "think-tokens", "iap-tokens"), "0.5": ("policies", "think-tokens-half", "iap-tokens-half")}
    said = []
    for ratio, names in folders.items():
        errors = [{key[0]: value for key, value in evicted(results, name, layer="", budget="0.8").items()} for name in names]
        said.append(f"{ratio} pruned " + ", ".join(f"`{policy}` " + " / ".join(short(each[policy]) for each in errors)
                                                   for policy in ("snapkv", "h2o")))
    return "; ".join(said)


@found("iap bits")
def iap_bits(results):
    def error(folder):
        (value,) = evicted(results, folder, layer="").values()
        return short(value)

    return f"{error('iap-bits')}; " + "; ".join(
        f"{ratio} pruned {error('think-bits' + end)} / {error('iap-bits' + end)}" for ratio, end in (("0.4", "-4"), ("0.5", "-5")))


@found("iap recent")
def iap_recent(results):
    values = channel_values(results, "iap-recent", "output_error", "future")
    return "; ".join(f"{ratio} pruned, `{method}` " + " / ".join(short(values[f"{method}[recent={recent}]", ratio, ""]) for recent in (32, 64))
                     for ratio in ("0.4", "0.5") for method in ("think", "iap"))


@found("iap convex")
def bounded_channels(results):
    found = {}
    for row in rows_of(results / "iap-convex" / "channels.csv", rows="window"):
        if row["kv_head"] and row["metric"] in ("reconstruction_error", "lower_bound"):
            found[row["layer"], row["kv_head"], row["ratio"], row["method"], row["metric"]] = float(row["value"])
    near = [value / found[(*key[:3], "convex", "lower_bound")] - 1 for key, value in found.items()
            if key[3:] == ("iap", "reconstruction_error")]
    return (f"within {percent(np.median(near), 1)} of a proven bound in the median, {percent(max(near))} at worst, "
            f"{len(near)} heads and ratios")


@found("think magnitude")
def think_magnitude(results):
    return f"magnitude saves {gains(results, 'iap', 'reconstruction_gain', 'window', 'magnitude')}"


@found("think spectrum")
def spectrum(results):
    shares = []
    for layer in sorted((results / "iap").glob("layer_*")):
        values = np.load(layer / "channels" / "spectrum.npy")
        shares += list(values[:, : round(values.shape[1] / 10)].sum(1) / values.sum(1))
    return (f"the largest tenth of H's eigenvalues holds {percent(np.mean(shares))} of their sum, {percent(min(shares))} to "
            f"{percent(max(shares))} by head")


@found("think tokens")
def think_tokens(results):
    alone, both = ({policy: value for (policy, *_), value in evicted(results, folder, layer="", budget="0.8").items()}
                   for folder in ("think-none", "think-tokens"))
    return ", ".join(f"`{policy}` {short(alone[policy])} -> {short(both[policy])}" for policy in both if policy in alone)


@found("think recent")
def think_recent(results):
    values = channel_values(results, "think-recent", "output_error", "future")
    return "output error on the decoding steps at 0.4, the last 0 / 32 / 128 keys whole: " + " / ".join(
        short(values[f"think[recent={recent}]", "0.4", ""]) for recent in (0, 32, 128))


@found("think bits")
def think_bits(results):
    rows = rows_of(results / "think-bits" / "evictions.csv", layer="", metric="output_error", rows="future")
    return short(float(rows[0]["value"]))


@found("lukv recall")
def importance_recall(results):
    """The share of the importance that stays, 1 - eviction_loss / total; the oracle's is that without the optimality gap."""
    total = sum(float(row["oracle_importance"]) for row in rows_of(results / "lukv-total" / "heads.csv"))
    lost, gap = (evicted(results, "lukv-recall", metric=metric, layer="") for metric in ("eviction_loss", "optimality_gap"))

    def curve(losses):
        return " / ".join(f"{1 - losses[sigma] / total:.2f}" for sigma in ("0.1", "0.5", "0.8", "0.9"))

    of = {policy: {sigma: lost[policy, "paper", "prefill", sigma, ""] for sigma in ("0.1", "0.5", "0.8", "0.9")}
          for policy in dict.fromkeys(policy for policy, *_ in lost)}
    best = {sigma: loss - gap["snapkv", "paper", "prefill", sigma, ""] for sigma, loss in of["snapkv"].items()}
    return f"oracle {curve(best)}, " + listed((policy, curve(losses)) for policy, losses in of.items())


def losses(results, folder, **equal):
    """{(order, sigma, method): summed loss}"""
    return {(r["order"], r["sigma"], r["method"]): float(r["loss"]) for r in budgets(results, folder, layer="", **equal)}


@found("lukv optimum")
def greedy_and_optimum(results):
    values = losses(results, "lukv")
    above = [value / values[order, sigma, "optimal"] - 1 for (order, sigma, method), value in values.items()
             if method == "lu"]
    return (f"loss above the optimum's: {percent(np.median(above), 2)} in the median, at most {percent(max(above), 1)} "
            f"({len(above)} orders and sigmas)")


@found("lukv loss")
def loss_of_methods(results):
    return by_method(losses(results, "lukv"))


def by_method(values):
    """lu / ada / pyramid / uniform of {(order, sigma, method): value}, at half and a fifth kept."""
    return "; ".join(
        f"`{order}` at {sigma}: " + " / ".join(short(values[order, sigma, method]) for method in ("lu", "ada", "pyramid", "uniform"))
        for order, sigma in dict.fromkeys(key[:2] for key in values) if sigma in ("0.5", "0.8"))


@found("lukv burst")
def worst_head(results):
    most = {}
    for row in budgets(results, "lukv"):
        if row["layer"] and row["kv_head"]:
            key = row["order"], row["sigma"], row["method"]
            most[key] = max(most.get(key, 0), float(row["loss"]))
    return by_method(most)


@found("lukv gap")
def without_gap(results):
    said = []
    for row in budgets(results, "lukv-gap", layer="", method="lu_without_gap"):
        if row["sigma"] == "0.8":
            lu = budgets(results, "lukv-gap", layer="", method="lu", order=row["order"], sigma="0.8")[0]
            said.append(f"`{row['order']}` at 0.8 {percent(float(row['loss']) / float(lu['loss']) - 1, sign='+')}, "
                        f"{short(float(row['output_error']))} over {short(float(lu['output_error']))}")
    return "; ".join(said)


@found("lukv shares")
def shares(results):
    kept = {}
    for row in budgets(results, "lukv", order="snapkv", method="lu"):
        if row["kv_head"]:
            kept.setdefault(row["sigma"], []).append(int(row["budget"]))
    spans = (f"{min(heads)} to {max(heads)} at {sigma}" for sigma, heads in kept.items() if sigma in ("0.2", "0.5", "0.8"))
    return f"fewest and most tokens of a head, `snapkv`: {', '.join(spans)}"


@found("lukv output")
def lukv_output(results):
    return "output error at 0.8: " + divided(results, "lukv", "0.8")


@found("adakv output")
def adakv_output(results):
    return divided(results, "adakv", "0.8")


@found("pyramidkv output")
def pyramid_output(results):
    return divided(results, "pyramidkv", "0.8")
