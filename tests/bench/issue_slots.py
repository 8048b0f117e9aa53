#!/usr/bin/env python3
"""How many instructions a warp issues for one step of the two passes over rows and tokens, from their machine code.

    issue_slots.py [--nvdisasm PROGRAM] [--nvcc PROGRAM]

compiles both for sm_90, prints a table and exits with 1 where one takes more than its bar. nvdisasm comes with the CUDA
Toolkit, or as a Python package, nvidia-cuda-nvdisasm.

A step is one way through a kernel's main loop, which is the loop with the most matrix instructions: of all ways the one
with the most of those, of copies to shared memory, exponentials and reciprocals, and of these the shortest. What is
seldom (borders of the mask, numbers that cancel) stands beside it. What is predicated off is issued too, so it counts.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?((?:@!?U?P\w+ )?)\s*([A-Z][A-Z0-9_.]*)(.*?);")
MATRIX = ("HMMA", "HGMMA", "IMMA")


def functions(nvdisasm, cubin):
    """{name: [(label or None, predicate, opcode, operands)]}"""
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    found, body = {}, None
    for line in text.splitlines():
        if line.startswith(".text."):
            body = found.setdefault(line.rstrip(":")[len(".text."):], [])
        elif line.startswith(".L_") and body is not None:
            body.append(("label", line.split(":")[0]))
        elif body is not None and (match := INSTRUCTION.search(line)):
            body.append(("code", match[1].strip(), match[2], match[3]))
    return found


def blocks_of(body):
    """Basic blocks: [(instructions, successors)], the first is entered."""
    labels, blocks, current = {}, [], []
    meets = {}  # where a barrier's threads go on: the label of the BSSY above

    def close():
        nonlocal current
        if current:
            blocks.append(current)
            current = []

    for item in body:
        if item[0] == "label":
            close()
            labels[item[1]] = len(blocks)
        else:
            kind = item[2].split(".")[0]
            if kind == "BSSY":
                meets[item[3].split(",")[0].strip()] = re.search(r"`\((\.L_\w+)\)", item[3])[1]
            elif kind == "BSYNC":
                item = (*item[:3], f"{item[3]} `({meets[item[3].strip()]})")
            current.append(item)
            if kind in ("BRA", "EXIT", "RET", "BRX", "JMP", "BSYNC"):
                close()
    close()
    successors = []
    for number, block in enumerate(blocks):
        _, predicate, opcode, operands = block[-1]
        kind = opcode.split(".")[0]
        target = re.search(r"`\((\.L_\w+)\)", operands)
        following = [number + 1] if number + 1 < len(blocks) else []
        # A branch may have its condition behind its name as well.
        conditional = bool(predicate) or opcode.startswith("BRA.DIV") or (kind == "BRA" and re.search(r"\bU?P\d", operands.split("`")[0]))
        if kind in ("BRA", "BSYNC") and target:
            there = [labels[target[1]]] if labels[target[1]] < len(blocks) else []
            successors.append(there + (following if conditional else []))
        elif kind in ("EXIT", "RET"):
            successors.append(following if conditional else [])
        else:
            successors.append(following)
    return blocks, successors


def dominators(successors):
    count = len(successors)
    before = [[] for _ in range(count)]
    for block, following in enumerate(successors):
        for one in following:
            before[one].append(block)
    every = set(range(count))
    found = [every.copy() for _ in range(count)]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in range(1, count):
            known = [found[p] for p in before[block]]
            new = (set.intersection(*known) if known else set()) | {block}
            if new != found[block]:
                found[block], changed = new, True
    return found, before


def matrix_count(block):
    return sum(item[2].startswith(MATRIX) for item in block)


def work_of(block):
    return sum(item[2].startswith((*MATRIX, "LDGSTS", "UTMALDG", "MUFU")) for item in block)


def main_loop(blocks, successors):
    """(head, [latches], blocks inside) of the loop with the most matrix instructions."""
    dominated_by, before = dominators(successors)
    loops = {}
    for block, following in enumerate(successors):
        for head in following:
            if head in dominated_by[block]:
                inside, open_blocks = loops.setdefault(head, ({head}, []))[0], [block]
                loops[head][1].append(block)
                while open_blocks:
                    one = open_blocks.pop()
                    if one not in inside:
                        inside.add(one)
                        open_blocks += before[one]
    if not loops:
        raise SystemExit("no loop")
    head, (inside, latches) = max(loops.items(), key=lambda loop: (sum(matrix_count(blocks[b]) for b in loop[1][0]),
                                                                    -len(loop[1][0])))
    inner = [h for h in loops if h in inside and h != head]
    return head, latches, inside, dominated_by, inner


def step(blocks, successors):
    """The instructions of one way through the main loop, and whether a loop within it has matrix instructions."""
    head, latches, inside, dominated_by, inner = main_loop(blocks, successors)
    best, done = {}, set()  # of block: (work, -instructions) to the end, next block

    def visit(start):
        stack = [(start, False)]
        while stack:
            block, ready = stack.pop()
            if not ready:
                if block in done:
                    continue
                done.add(block)
                stack.append((block, True))
                stack += [(n, False) for n in ahead(block) if n not in done]
                continue
            own = (work_of(blocks[block]), -len(blocks[block]))
            ways = [(best[n][0], n) for n in ahead(block) if n in best and best[n] is not None]
            if block in latches:
                ways.append(((0, 0), None))
            if not ways:
                best[block] = None
                continue
            value, following = max(ways, key=lambda way: way[0])
            best[block] = ((own[0] + value[0], own[1] + value[1]), following)

    def ahead(block):
        return [n for n in successors[block] if n in inside and n != head and n not in dominated_by[block]]

    sys.setrecursionlimit(100000)
    visit(head)
    path, block = [], head
    while block is not None:
        path.append(block)
        block = best[block][1]
    return [item for b in path for item in blocks[b]], [b for b in inner if b in path]


SOURCE = pathlib.Path(__file__).resolve().parents[2]
CYCLES = 4  # of a matrix unit for mma.m16n8k16, four units and four schedulers a multiprocessor (H100)
ENTRIES = 32  # of a lane in a step of pass two

WINDOW, FUTURE, WEIGHTS, MAX_ATTN = (f"LNS_9ColumnSetE{number}E" for number in range(4))  # sim/tokens/row_scores.hpp
WIDE, NARROW = (f"LNS0_10ScoreBlockE{number}E" for number in range(2))  # sim/tokens/cuda/column_kernels.hpp

# Kernel, its operands (Planes, depth and values in sim/tokens/cuda/operands.hpp), what it is, the most slots of a step and
# of an entry behind the last matrix instruction.
STEPS = [
    ("softmax", "PlanesE1ELi128ELb1EEELb1E", "pass one, `tensor`", 1250, None),
    ("softmax", "PlanesE2ELi128ELb1EEELb1E", "pass one, `f32`, 16-bit dump", 1580, None),
    ("softmax", "PlanesE3ELi128ELb1EEELb1E", "pass one, `f32`, 32-bit dump", 1800, None),
    ("softmax", "PlanesE1ELi128ELb0EEELb1E", "pass one, weights, 16-bit dump", 840, None),
    ("softmax", "PlanesE3ELi128ELb0EEELb1E", "pass one, weights, 32-bit dump", 1050, None),
    ("score", "PlanesE1ELi128ELb1EEE" + WIDE + WINDOW, "pass two, window, `tensor`", 2190, 51),
    ("score", "PlanesE2ELi128ELb1EEE" + WIDE + WINDOW, "pass two, window, `f32`, 16-bit dump", 2380, 51),
    ("score", "PlanesE3ELi128ELb1EEE" + WIDE + WINDOW, "pass two, window, `f32`, 32-bit dump", 2570, 51),
    ("score", "PlanesE2ELi128ELb1EEE" + NARROW + WINDOW, "pass two, window, narrow, `f32`, 16-bit dump", 2480, 51),
    ("score", "PlanesE3ELi128ELb1EEE" + NARROW + WINDOW, "pass two, window, narrow, `f32`, 32-bit dump", 2720, 51),
    ("score", "PlanesE2ELi128ELb1EEE" + WIDE + FUTURE, "pass two, future, `f32`, 16-bit dump", 1430, 22),
    ("score", "PlanesE1ELi128ELb0EEE" + WIDE + WEIGHTS, "pass two, weights, 16-bit dump", 610, 9.5),
    ("score", "PlanesE3ELi128ELb0EEE" + WIDE + WEIGHTS, "pass two, weights, 32-bit dump", 790, 9.5),
    ("score", "PlanesE1ELi128ELb0EEE" + WIDE + MAX_ATTN, "pass two, largest weights, 16-bit dump", 650, 9.5),
]


def compiled(nvcc, kernels, folder):
    cubin = pathlib.Path(folder) / f"{kernels}.cubin"
    subprocess.run([nvcc, "-std=c++17", "-arch=sm_90", "-cubin", "--prec-div=false", f"-I{SOURCE}",
                    SOURCE / f"sim/tokens/cuda/{kernels}_kernels.cu", "-o", cubin], check=True)
    return cubin


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nvdisasm", default=shutil.which("nvdisasm"))
    options.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    given = options.parse_args()
    if not given.nvdisasm:
        options.error("no nvdisasm on the PATH: pip install nvidia-cuda-nvdisasm, and --nvdisasm")
    known, over = {}, []
    print("| a warp's step, d = 128 | slots | of them matrix | an entry behind them | of the matrix units' peak, at most |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kernels, operands, what, most, most_entry in STEPS:
            if kernels not in known:
                known[kernels] = functions(given.nvdisasm, compiled(given.nvcc, kernels, folder))
            bodies = [body for name, body in known[kernels].items() if f"{kernels}_kernelI" in name and operands in name]
            if len(bodies) != 1:
                raise SystemExit(f"{what}: {len(bodies)} kernels of that name")
            way, loops = step(*blocks_of(bodies[0]))
            if loops:
                raise SystemExit(f"{what}: a loop within its step, which this does not count")
            matrix = [i for i, item in enumerate(way) if item[2].startswith(MATRIX)]
            entry = (len(way) - matrix[-1]) / ENTRIES
            peak = CYCLES * len(matrix) / max(len(way), CYCLES * len(matrix))
            print(f"| {what} | {len(way)} | {len(matrix)} | {f'{entry:.1f}' if most_entry else ''} | {peak:.2f} |")
            if len(way) > most or (most_entry and entry > most_entry):
                over.append(f"{what}: {len(way)} slots, {entry:.1f} an entry; at most {most}, {most_entry}")
    for line in over:
        print(line, file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
