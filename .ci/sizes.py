#!/usr/bin/env python3
"""Lines and files of C++ and CUDA by subject, in the tables of analysis/README.md, sim/README.md and viewer/README.md.

  sizes.py           prints the tables with today's numbers, and totals
  sizes.py --write   writes today's numbers to the pages
  sizes.py --check   exit status 1 if a number in a page is more than a tenth off, or a folder is not in exactly one row

A row lists folders of its page's folder ("." are the files of the folder itself), lines, files, and what a user gets.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOUSES = ("analysis", "sim", "viewer")
CODE = (".cpp", ".hpp", ".cu")
ROW = re.compile(r"^\| ([a-z_., ]+) \| ([\d,]+) \| (\d+) \| (.+) \|$", re.M)


def lines_of_files():
    """Lines by path, of the code that git tracks."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.split("\n")
    return {name: (ROOT / name).read_bytes().count(b"\n") for name in names if name.endswith(CODE) and (ROOT / name).is_file()}


def main():
    lines, wrong = lines_of_files(), []
    for house in HOUSES:
        page = ROOT / house / "README.md"
        rows = {}
        for name, count in lines.items():
            parts = name.split("/")
            if parts[0] == house:
                total = rows.setdefault(parts[1] if len(parts) > 2 else ".", [0, 0])
                total[0] += count
                total[1] += 1

        def updated(row):
            folders = row[1].split(", ")
            found = [rows.pop(folder, None) for folder in folders]
            wrong.extend(f"{house}/README.md: {folder}: no such folder, or in two rows" for folder, it in zip(folders, found) if it is None)
            count, files = (sum(it[i] for it in found if it) for i in (0, 1))
            if abs(count - int(row[2].replace(",", ""))) > count / 10:
                wrong.append(f"{house}/README.md: {row[1]}: {row[2]} lines, now {count:,}")
            line = f"| {row[1]} | {count:,} | {files} | {row[4]} |"
            print(line)
            return line

        text = ROW.sub(updated, page.read_text())
        wrong += [f"{house}/README.md: {folder} is in no row" for folder in rows]
        if "--write" in sys.argv:
            page.write_text(text)
    for what, folders in {"data": ("data",), **{h: (h,) for h in HOUSES}, "product": ("data", *HOUSES), "tests": ("tests",)}.items():
        mine = [count for name, count in lines.items() if name.split("/")[0] in folders]
        print(f"{what:10}{sum(mine):9,} lines in {len(mine)} files")
    if "--check" in sys.argv and wrong:
        sys.exit("\n".join(wrong) + "\nsizes.py --write corrects numbers")


main()
