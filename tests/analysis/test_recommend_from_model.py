#!/usr/bin/env python3
"""`kvreplay recommend --model`: from a GGUF file and prompts to a setting of llama.cpp.

  KVREPLAY=build/release/bin/kvreplay python3 tests/analysis/test_recommend_from_model.py

Skipped where the program was built without llama.cpp, and where the packages of tests/capture/test_llama_capture.py are missing.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture"))
from capture_case import Case, build, main  # noqa: E402
from test_kvcapture_gguf import PIECES, TEXT, write_gguf  # noqa: E402
from test_llama_capture import program  # noqa: E402


class FromModel(Case):
    def test_a_recommendation_starts_from_a_model_and_prompts(self):
        file, texts, work = self.folder / "small.gguf", self.folder / "texts", self.folder / "work"
        write_gguf(file, build("llama", vocab_size=len(PIECES), hidden_size=128, head_dim=32, intermediate_size=96))
        texts.mkdir()
        for name, text in (("a", TEXT), ("b", TEXT[5:])):
            (texts / f"{name}.txt").write_text(text)
        command = ("recommend", "--model", file, "--prompts", texts, "--work", work, "--for", "llama.cpp", "--bytes", "60%", "--decode", 6)
        done = program(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = [line for line in done.stdout.splitlines() if line.startswith("$ kvreplay")]
        self.assertEqual([line.split()[2] for line in steps], ["capture", "evict", "capture", "capture"], done.stdout)
        self.assertIn("about", done.stdout.split("$")[0])  # the estimate comes first
        self.assertIn("measured as an engine writes its cache", done.stdout)
        self.assertIn("llama-server -m MODEL", done.stdout)
        # Each step stands for itself, and a second run goes on from what is there.
        again = program(*command)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout.count("--judge"), 0, again.stdout)
        alone = program("recommend", work / "results", "--for", "llama.cpp", "--bytes", "60%")
        self.assertEqual(alone.stdout.split("\nwithin")[1], again.stdout.split("\nwithin")[1])


if __name__ == "__main__":
    main()
