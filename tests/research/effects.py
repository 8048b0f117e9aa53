"""What effects by prompt come to: mean, 95 % interval, verdict, and the tables of the README. Standard library only; the program's
report forms the same in C++, which claims.py holds against this."""

import csv
import math
import statistics

from intervals import half_width

SENTENCE = ("id", "paper", "figure", "claim", "claimed")
EFFECT = ("model", "prompt", "id", "setting", "effect")
ROWS = {"future": "decoding steps", "window": "window"}
ALIKE = {"ratio": 0.2, "difference": 0.05}
NO_EFFECT = {"ratio": 1, "difference": 0}


def within_one(value):
    return min(max(value, -1.0), 1.0)  # what is no number stays none


SCALES = {"ratio": (math.log, math.exp), "difference": (float, within_one), "correlation": (math.atanh, math.tanh)}


class Summary:
    """The effects of a claim in one setting on a model's prompts; `claimed` as the report has it: "ratio < 1". Correlations of 1
    have no z: they are averaged as they are, and as shares' differences go no further than 1."""

    def __init__(self, claimed, values):
        self.kind, self.sign, bound = claimed.split()
        self.bound, self.prompts = float(bound), len(values)
        plain = self.kind == "correlation" and any(abs(value) >= 1 for value in values)
        to, back = (float, within_one) if plain else SCALES[self.kind]
        scaled = [to(value) for value in values]
        middle = statistics.fmean(scaled)
        half = half_width(scaled)
        self.effect, self.low, self.high = back(middle), back(middle - half), back(middle + half)

    @property
    def verdict(self):
        if math.isnan(self.low):
            return ""
        below, above = self.high < self.bound, self.low > self.bound
        if below or above:
            return "holds" if below == (self.sign == "<") else "does not hold"
        if NO_EFFECT.get(self.kind) == self.bound:
            most = max(abs(self.low - self.bound), abs(self.high - self.bound))
            if most <= ALIKE[self.kind]:
                size = f"{100 * most:.2g} %" if self.kind == "ratio" else f"{most:.2g}"
                return f"no difference at this size (up to {size})"
        return f"undecided: between {self.text_of(self.low)} and {self.text_of(self.high)}"

    def text_of(self, value):
        if self.kind == "ratio":
            return f"{value:.4f}" if abs(value - 1) < 0.01 else short(value)
        return f"{value:+.3f}" if self.kind == "difference" else f"{value:.3f}"

    def cell(self):
        """Of a table: the effect, its interval and the verdict, shortly."""
        if math.isnan(self.low):
            return self.text_of(self.effect)
        word = {"holds": "**holds**", "does not hold": "**does not hold**"}.get(self.verdict)
        word = word or self.verdict.replace(" at this size", "").split(":")[0]
        return f"{self.text_of(self.effect)} [{self.text_of(self.low)}, {self.text_of(self.high)}] {word}"


def short(value):
    """Three digits; 1532, not 1.53e+03."""
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def write(path, columns, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, columns, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def saved(folder):
    """({id: its sentence}, effects)"""
    return {row["id"]: row for row in read(folder / "sentences.csv")}, list(read(folder / "claims.csv"))


def save(folder, sentences, found):
    """In place of what is there of the same models."""
    if (folder / "claims.csv").exists():
        before, kept = saved(folder)
        models = {row["model"] for row in found}
        sentences = {**before, **sentences}
        found = [row for row in kept if row["model"] not in models] + found
    write(folder / "sentences.csv", SENTENCE, sentences.values())
    write(folder / "claims.csv", EFFECT, found)


def tables(sentences, found):
    """Markdown: of every paper a table, a row a setting, a column a model."""
    models = list(dict.fromkeys(row["model"] for row in found))
    prompts = {model: len({row["prompt"] for row in found if row["model"] == model}) for model in models}
    effects, settings = {}, {}
    for row in found:
        effects.setdefault((row["id"], row["setting"], row["model"]), []).append(float(row["effect"]))
        settings.setdefault(row["id"], {})[row["setting"]] = None
    papers = {}
    for sentence in sentences.values():
        if sentence["id"] in settings:
            papers.setdefault(sentence["paper"], []).append(sentence)
    parts = []
    for paper, its in papers.items():
        heads = [f"{model} ({prompts[model]} prompt{'' if prompts[model] == 1 else 's'})" for model in models]
        lines = [f"### {paper}", "", f"| claim | setting | {' | '.join(heads)} |", "|---|---|" + "---|" * len(models)]
        for sentence in its:
            name = f"{sentence['figure']}: {sentence['claim']} ({sentence['claimed'].replace('<', '&lt;')})"
            for setting in settings[sentence["id"]]:
                cells = [Summary(sentence["claimed"], values).cell() if (values := effects.get((sentence["id"], setting, model))) else ""
                         for model in models]
                lines.append(f"| {name} | {setting} | {' | '.join(cells)} |")
                name = ""
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def page(folder):
    return tables(*saved(folder))
