#!/usr/bin/env python3
"""How many instructions a warp issues for one step of a kernel's main loop, from its machine code.

    issue_slots.py NVDISASM CUBIN KERNEL-PATTERN

The main loop is the one with the most matrix instructions. Of the ways through it the one is counted that meets most of
those and of the copies to shared memory, and of these the shortest: what is seldom (borders of the mask, numbers that
cancel) stands beside it. What is predicated off is issued too, so it counts.
"""

import re
import subprocess
import sys
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


def main():
    nvdisasm, cubin, pattern = sys.argv[1:4]
    for name, body in functions(nvdisasm, cubin).items():
        if not re.search(pattern, name):
            continue
        blocks, successors = blocks_of(body)
        way, loops = step(blocks, successors)
        kinds = Counter(item[2].split(".")[0] for item in way)
        print(f"{name}: {len(way)} slots, {sum(kinds[m] for m in MATRIX)} matrix, {len(loops)} loops within")
        print("  " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common(30)))


if __name__ == "__main__":
    main()
