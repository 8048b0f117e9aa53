"""Cases that every part has, whatever the seed: one or two for each thing that the program once got wrong."""

from itertools import product

# Somebody else's files were removed by --force and through links; devices and pipes were replaced by --out.
OTHERS = ("results/evict/force/sound", "results/evict/force/layer_00/folder_elsewhere",
          "results/tokens/resume_unfinished/.kvreplay/folder_elsewhere", "options/report/out/full-device",
          "options/compare/html/full-device", "view/around/onto/_dev_full")
# Layers were taken as they were found, and records read whatever their size.
LAYERS = tuple(f"results/tokens/{verb}/layer_00/tokens/attn.npy/{what}" for verb, what in product(
    ("merge", "resume_unfinished"), ("removed", "half", "flip-0", "another", "link", "pipe", "folder"))) + tuple(
        f"results/tokens/{record}/layer_00.figures/{what}" for record, what in product(
            ("merge/figures", "resume_unfinished/.kvreplay/layers"), ("flip-0", "enormous")))
# Inputs and results changed during a run unnoticed; files that shrank ended it by SIGBUS; half a dump was whole.
CHANGES = ("kills/synth/kill-0", "kills/synth/kill-1", "kills/input/rewrite-1-0", "kills/input/replace-0",
           "kills/output/layer-0", "kills/output/all-0", "kills/input/shrink-layer_00/q-0-0",
           "kills/verify/shrink-layer_00/q-0-0", "view/around/shrink-dump/layer_00/q.npy-0")
# Figures were wrong or infinite.
FIGURES = ("manifests/tokens/sliding_window/int64", "manifests/tokens/scale/million",
           "manifests/tokens/sink_logit/of-its-own-4")
# What is none was accepted: flipped bits, keys twice, empty values, panels and scores.
ACCEPTED = ("archives/info/stored-flip-0", "archives/tokens/stored-flip-0", "manifests/info/manifest.json/twice-scale",
            "manifests/info/manifest.json/nul-behind", "options/tokens/config/empty", "options/tokens/shard/empty",
            "options/evict/pool/empty", "options/tokens/metrics/toml-list-lines", "view/options/panel/empty",
            "view/options/score/pair-of-none", "arrays/info/beside-7", "results/tokens/report/heads.csv/removed",
            "results/tokens/compare/heads.csv/flip-0", "view/results/tokens/maps/attn.npy/removed")
# Depth, size and pipes without end killed it or kept it waiting.
ENDLESS = ("manifests/info/manifest.json/deep", "manifests/info/manifest.json/deep-objects",
           "manifests/info/manifest.json/enormous-instead", "options/tokens/config/zero-device",
           "options/tokens/config-file-pipe-instead", "arrays/info/layer_00/q.npy/pipe", "view/dump/model/megabyte",
           "view/options/path/long", "view/session/pipe-instead", "view/session/scores-0")
# Standard streams that take nothing, files without size, disks without room.
ROOM = ("limits/tokens/closed-1-2", "limits/tokens/full-1-2", "limits/tokens/file-0", "limits/evict/disk-2048")
# Names and values steered the terminal, split lines, made them endless, or were taken for something else.
NAMES = ("arrays/named-0", "arrays/named-9", "arrays/named-10", "arrays/info/layer_00/q.npy/shape-34",
         "options/tokens/window/escapes", "options/tokens/window/long", "options/tokens/metrics/word",
         "view/dump/model/escapes")

CASES = frozenset(OTHERS + LAYERS + CHANGES + FIGURES + ACCEPTED + ENDLESS + ROOM + NAMES)
