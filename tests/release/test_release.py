#!/usr/bin/env python3
"""What a release consists of beside the program: one version everywhere, a citation, a changelog, workflows and forms that are sound.

  KVREPLAY=build/release/bin/kvreplay python3 tests/release/test_release.py
"""
import os
import re
import subprocess
import sys
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("KVREPLAY")


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def parsed(path):
    return yaml.safe_load(text(path))


def found(pattern, path):
    """The group of every match."""
    return re.findall(pattern, text(path), re.M)


VERSION = found(r"^project\(kvreplay VERSION (\d+\.\d+\.\d+)", "CMakeLists.txt")[0]


class Version(unittest.TestCase):
    def test_program(self):
        said = subprocess.run([PROGRAM, "--version"], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
        self.assertEqual(said.split()[:2], ["kvreplay", VERSION])

    def test_python_package(self):
        rule = tomllib.loads(text("pyproject.toml"))["tool"]["scikit-build"]["metadata"]["version"]
        self.assertEqual(re.search(rule["regex"], text(rule["input"]))["value"], VERSION)

    def test_citation_and_changelog(self):
        citation = parsed("CITATION.cff")
        self.assertEqual(citation["version"], VERSION)
        self.assertEqual(found(r"^  version = \{(.*)\}", ".github/CONTRIBUTING.md"), [VERSION])
        releases = found(r"^## \[(\d.*)\] - (\d{4}-\d\d-\d\d)$", "CHANGELOG.md")
        self.assertEqual(releases[0], (VERSION, citation["date-released"]))
        self.assertEqual(releases, sorted(releases, key=lambda r: [int(n) for n in r[0].split(".")], reverse=True))

    def test_conda_recipe(self):
        self.assertEqual(parsed("analysis/package/conda/recipe.yaml")["context"]["version"], VERSION)

    def test_library(self):
        minor = VERSION.rpartition(".")[0]
        for page in "CHANGELOG.md", "analysis/package/INSTALL.md", "tests/consumer/CMakeLists.txt", "tests/consumer/headers/CMakeLists.txt":
            asked = found(r"find_package\(kvreplay ([\d.]+)", page)
            self.assertTrue(asked and set(asked) == {minor}, f"{page}: find_package asks for {asked}, expected {minor}")


class Citation(unittest.TestCase):
    def test_has_what_it_needs(self):
        citation = parsed("CITATION.cff")
        for key in "cff-version", "message", "type", "title", "abstract", "authors", "license", "keywords":
            self.assertTrue(citation.get(key), key)
        self.assertIn(citation["license"], text("LICENSE"))
        for author in citation["authors"]:
            self.assertIn(author["name"], text("LICENSE"))


class Workflows(unittest.TestCase):
    def test_steps_and_scripts_are_there(self):
        steps = set(found(r"^run_(\w+)\(\) \{", ".ci/run"))
        self.assertGreater(len(steps), 8)
        for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
            for name, job in parsed(path)["jobs"].items():
                matrix = job.get("strategy", {}).get("matrix", {})
                commands = [step["run"] for step in job["steps"] if "run" in step]
                commands += [f".ci/run {step}" for step in matrix.get("steps", [])] + [row["run"] for row in matrix.get("include", [])]
                for command in commands:
                    for asked in re.findall(r"\.ci/run ([a-z_ ]+)$", command, re.M):
                        self.assertLessEqual(set(asked.split()), steps, f"{path.name}, {name}")
                    for script in re.findall(r"(?:^|\s)((?:\./|\.github/|\.ci/|tests/)[\w./-]+)", command):
                        self.assertTrue((ROOT / script).exists(), f"{path.name}, {name}: {script}")

    def test_every_step_has_a_job(self):
        asked = " ".join(parsed(".github/workflows/test.yml")["jobs"]["steps"]["strategy"]["matrix"]["steps"]).split()
        needs_nvcc, nightly = {"issue_slots", "ptx"}, {"architectures"}
        part_of_another = set(found(r"^ +run_(\w+)$", ".ci/run"))
        steps = set(found(r"^run_(\w+)\(\) \{", ".ci/run"))
        self.assertEqual(sorted(asked), sorted(steps - needs_nvcc - nightly - part_of_another))
        for step in nightly:
            self.assertIn(f".ci/run {step}", (ROOT / ".github/workflows/nightly.yml").read_text())


class Packages(unittest.TestCase):
    def test_conda_builds_with_what_debian_does(self):
        """Every library that the wheel looks for is asked for by either name."""
        names = {"libeigen3-dev": "eigen", "libhwy-dev": "libhwy", "libfmt-dev": "fmt", "nlohmann-json3-dev": "nlohmann_json", "libcli11-dev": "cli11",
                 "libtomlplusplus-dev": "tomlplusplus", "libzip-dev": "libzip", "libpng-dev": "libpng", "libxxhash-dev": "xxhash"}
        debian = set(re.findall(r"lib\S+-dev|nlohmann\S+", re.search(r"program\)(.*?);;", text("bootstrap.sh"), re.S)[1]))
        self.assertEqual(debian, set(names))
        host = {line.split()[0] for line in parsed("analysis/package/conda/recipe.yaml")["requirements"]["host"]}
        self.assertLessEqual(set(names.values()), host)

    def test_the_image_builds_what_is_there(self):
        image = text("analysis/package/Dockerfile")
        for option in re.findall(r"-D(KVREPLAY_\w+)=", image):
            self.assertRegex(text("CMakeLists.txt"), rf"(option|set)\({option} ", option)
        self.assertEqual(re.findall(r"cmake --preset (\w+)", image), ["release"])


class Forms(unittest.TestCase):
    def test_issue_forms(self):
        forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
        self.assertEqual([form.stem for form in forms], ["broken-file", "config", "new-method", "wrong-number"])
        for form in (parsed(form) for form in forms if form.stem != "config"):
            self.assertTrue(form["name"] and form["description"])
            fields = [field for field in form["body"] if field["type"] != "markdown"]
            self.assertEqual(len({field["id"] for field in fields}), len(fields))
            self.assertTrue(all(field["attributes"]["label"] for field in fields))
            self.assertTrue(any(field.get("validations", {}).get("required") for field in fields))

    def test_a_wrong_number_comes_with_what_judges_it(self):
        asked = text(".github/ISSUE_TEMPLATE/wrong-number.yml")
        for what in "kvreplay verify", "manifest.json", "run.json", "--version":
            self.assertIn(what, asked)


class Contributing(unittest.TestCase):
    def test_the_commits_named_are_in_the_history(self):
        git = ["git", "-C", str(ROOT)]
        named = found(r"`([0-9a-f]{8})`", ".github/CONTRIBUTING.md")
        self.assertGreater(len(named), 5)
        # A shallow clone, a copy or a squashed import has none of them.
        if all(subprocess.run(git + ["cat-file", "-e", commit], stderr=subprocess.DEVNULL).returncode for commit in named):
            self.skipTest("the history is not here")
        for commit in named:
            known = subprocess.run(git + ["merge-base", "--is-ancestor", commit, "HEAD"], stderr=subprocess.PIPE, encoding="utf-8")
            self.assertEqual(known.returncode, 0, f"{commit} {known.stderr}")


if __name__ == "__main__":
    try:
        import yaml
    except ImportError as error:
        print(f"SKIPPED, nothing was tested: {error}", file=sys.stderr)
        sys.exit(77)
    if not PROGRAM:
        print("SKIPPED, nothing was tested: KVREPLAY names no kvreplay", file=sys.stderr)
        sys.exit(77)
    unittest.main()
