#!/usr/bin/env python3
"""PTX, as nvcc writes it, to C++ that runs a kernel's threads on the processor (machine.hpp).

    ptx_to_cpp.py KERNELS.ptx KERNELS.cu OUT.cpp

OUT.cpp compiles KERNELS.cu as C++ too: a launch names a kernel by the address that it has there. An instruction or an operand
that is not known here ends the program and is named.
"""

import re
import sys

# What an instruction gives: a, b, c, d are its operands, of the type that ends its name, T; W is twice as wide, D is what cvt makes.
RESULTS = {
    "mov": "{a}", "add": "{a} + {b}", "add.rn": "{a} + {b}", "sub": "{a} - {b}", "neg": "-{a}",
    "mul": "{a} * {b}", "mul.rn": "{a} * {b}", "mul.lo": "{a} * {b}", "mad.lo": "{a} * {b} + {c}",
    "mul.wide": "({W}){a} * ({W}){b}", "mul.hi": "mul_hi({a}, {b})",
    "div": "{a} / {b}", "div.rn": "{a} / {b}", "div.full": "off_by_ulps(2, {a} / {b})", "rem": "{a} % {b}",
    "fma.rn": "std::fma({a}, {b}, {c})", "fma.rm": "fma_downward({a}, {b}, {c})",
    "rcp.rn": "1 / {a}", "rcp.approx": "off_by_ulps(1, 1 / {a})", "rcp.approx.ftz": "rcp_ftz({a})",
    "ex2.approx": "ex2({a})", "ex2.approx.ftz": "flushed(ex2(flushed({a})))",
    "sqrt.rn": "std::sqrt({a})", "abs": "std::abs({a})", "copysign": "std::copysign({b}, {a})",
    "min": "lesser({a}, {b})", "max": "greater({a}, {b})",
    "and": "{a} & {b}", "or": "{a} | {b}", "xor": "{a} ^ {b}", "not": "({T})~{a}", "shl": "shl({a}, {b})", "shr": "shr({a}, {b})",
    "bfi": "bfi({a}, {b}, {c}, {d})", "clz": "std::countl_zero({a})",
    "cvt": "({D}){a}", "cvt.rn": "({D}){a}", "cvt.rni": "({D})std::nearbyint({a})", "cvt.sat": "saturated({a})",
    "add.cc": "carrying(cc, (u64){a} + {b})", "addc": "{a} + {b} + cc", "addc.cc": "carrying(cc, (u64){a} + {b} + cc)",
    "sub.cc": "carrying(cc, (u64){a} - {b})", "subc": "{a} - {b} - cc", "subc.cc": "carrying(cc, (u64){a} - {b} - cc)",
    "mad.lo.cc": "carrying(cc, (u64)({a} * {b}) + {c})", "madc.lo.cc": "carrying(cc, (u64)({a} * {b}) + {c} + cc)",
    "madc.hi": "mul_hi({a}, {b}) + {c} + cc", "madc.hi.cc": "carrying(cc, (u64)mul_hi({a}, {b}) + {c} + cc)",
}
WHOLE_RESULTS = {
    "not.pred": "!{a}", "cvt.f32.f16": "from_half({a})", "cvt.rn.f16.f32": "to_half({a})", "cvt.rna.tf32.f32": "to_tf32({a})",
}
WRAPPING = {"add", "sub", "neg", "mul.lo", "mad.lo", "shl"}
# 'u': or one of them is NaN.
COMPARISONS = {
    "lt": "{a} < {b}", "le": "{a} <= {b}", "gt": "{a} > {b}", "ge": "{a} >= {b}", "eq": "{a} == {b}", "ne": "{a} < {b} || {a} > {b}",
    "ltu": "!({a} >= {b})", "leu": "!({a} > {b})", "gtu": "!({a} <= {b})", "geu": "!({a} < {b})", "equ": "!({a} < {b} || {a} > {b})",
    "neu": "{a} != {b}", "nan": "std::isnan({a}) || std::isnan({b})",
}
ATOMICS = {"max": "greater(old, {b})", "or": "old | {b}"}
SPECIAL = {"%tid.x": "thread_index()", "%ctaid.x": "block().x", "%ctaid.y": "block().y", "%ctaid.z": "block().z"}
TYPE = re.compile(r"[usb](8|16|32|64)|f(16|32|64)|pred|tf32")


def split(text):
    """At commas outside braces."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,])+", text)]


def several(operand):
    return split(operand[1:-1]) if operand.startswith("{") else [operand]


def size(type_name):
    return int(re.sub(r"\D", "", type_name)) // 8


def register(name):
    if not re.fullmatch(r"%\w+", name):
        sys.exit(f"{sys.argv[1]}: expected a register, found {name}")
    return "$" + name[1:]


def value(operand, type_name):
    if operand in SPECIAL:
        return f"({type_name}){SPECIAL[operand]}"
    if operand.startswith("%"):
        return f"as<{type_name}>({register(operand)})"
    if number := re.fullmatch(r"0[fFdD]((?:[0-9A-Fa-f]{8}){1,2})", operand):
        return f"as<{type_name}>(0x{number[1]}{'u' if len(number[1]) == 8 else 'ull'})"
    if number := re.fullmatch(r"(-?(?:0x[0-9a-fA-F]+|\d+))U?", operand):
        return f"({type_name}){number[1]}ll"
    if re.fullmatch(r"[A-Za-z_]\w*", operand):
        return f"({type_name})(u64){operand}"
    sys.exit(f"{sys.argv[1]}: expected an operand, found {operand}")


def address(operand, shared=False):
    match = re.fullmatch(r"\[\s*([%\w]+?)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
    if not match:
        sys.exit(f"{sys.argv[1]}: expected an address, found {operand}")
    at = f"{value(match[1], 'u64')} + ({match[2] or 0})"
    return f"in_shared({at})" if shared else at


def result(op, operands):
    """The expression that is operands[0] afterwards; None where the instruction is of another kind."""
    parts = op.split(".")
    types = [parts.pop()]
    while parts[0] == "cvt" and TYPE.fullmatch(parts[-1]):
        types.insert(0, parts.pop())
    key, type_name = ".".join(parts), types[-1]
    expression = WHOLE_RESULTS.get(op) or RESULTS.get(key)
    if key.startswith("setp."):
        expression = COMPARISONS.get(key[len("setp."):])
    if not expression or not TYPE.fullmatch(type_name):
        return None
    if key in WRAPPING:
        type_name = type_name.replace("s", "u")
    names = {letter: value(operand, type_name) for letter, operand in zip("abcd", operands[1:])}
    wide = type_name[0] + str(16 * size(type_name)) if type_name != "pred" else ""
    return expression.format(T=type_name, D=types[0], W=wide, **names)


def statement(op, operands):
    parts = op.split(".")
    kind, type_name = parts[0], parts[-1]
    shared = "shared" in parts
    if kind == "bra":
        return f"goto {operands[0]};"
    if kind == "ret":
        return "return;"
    if op == "bar.sync":
        return "emulation::sync_block();"
    if kind == "mov" and (operands[0] + operands[1]).count("{"):
        to, of = several(operands[0]), several(operands[1])
        bits = 8 * size(type_name) // (len(to) * len(of))
        if len(of) > 1:
            return f"put({register(to[0])}, " + " | ".join(
                f"({type_name}){value(x, f'b{bits}')} << {bits * i}" for i, x in enumerate(of)) + ");"
        return f"{{ const {type_name} x = {value(of[0], type_name)}; " + " ".join(
            f"put({register(x)}, (b{bits})(x >> {bits * i}));" for i, x in enumerate(to)) + " }"
    if kind == "ld":
        to, n = several(operands[0]), size(type_name)
        return f"{{ const u64 at = aligned<{n * len(to)}>({address(operands[1], shared)}); " + " ".join(
            f"put({register(x)}, load<{type_name}>(at + {n * i}));" for i, x in enumerate(to)) + " }"
    if kind == "st":
        of, n = several(operands[1]), size(type_name)
        return f"{{ const u64 at = aligned<{n * len(of)}>({address(operands[0], shared)}); " + " ".join(
            f"store(at + {n * i}, {value(x, type_name)});" for i, x in enumerate(of)) + " }"
    if kind == "cvta" and not shared:
        return f"put({register(operands[0])}, {value(operands[1], type_name)});"
    if kind == "selp":
        a, b = (value(x, type_name) for x in operands[1:3])
        return f"put({register(operands[0])}, {value(operands[3], 'pred')} ? {a} : {b});"
    if kind == "atom" and parts[2] in ATOMICS:
        new = ATOMICS[parts[2]].format(b=value(operands[2], type_name))
        return (f"{{ const u64 at = {address(operands[1], shared)}; const auto old = load<{type_name}>(at); "
                f"store<{type_name}>(at, {new}); put({register(operands[0])}, old); }}")
    if kind == "shfl" and parts[2] in ("bfly", "idx"):
        to = operands[0].split("|")[0]
        return f"put({register(to)}, shfl_{parts[2]}({', '.join(value(x, 'b32') for x in operands[1:])}));"
    if op == "vote.sync.any.pred":
        return f"put({register(operands[0])}, vote_any({value(operands[1], 'pred')}, {value(operands[2], 'b32')}));"
    if op in ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"):
        return (f"{{ b32 x[4]; ldmatrix(x, {address(operands[1], True)}, {'true' if 'trans' in parts else 'false'}); "
                + " ".join(f"put({register(x)}, x[{i}]);" for i, x in enumerate(several(operands[0]))) + " }")
    if mma := re.fullmatch(r"mma\.sync\.aligned\.(m16n8k\d+)\.row\.col\.f32\.(f16|tf32)\.\2\.f32", op):
        a, b, c = (f"{t} {name}[] = {{{', '.join(value(x, t) for x in several(operand))}}};"
                   for name, t, operand in zip("abc", ("b32", "b32", "f32"), operands[1:]))
        return (f"{{ const {a} const {b} {c} mma({mma[1]}_{mma[2]}, c, a, b); "
                + " ".join(f"put({register(x)}, c[{i}]);" for i, x in enumerate(several(operands[0]))) + " }")
    if op == "cp.async.cg.shared.global" and operands[2] == "16":
        size_read = value(operands[3], "u32") if len(operands) > 3 else "16"
        return f"cp_async({address(operands[0], True)}, {address(operands[1])}, {size_read});"
    if op == "cp.async.commit_group":
        return "emulation::end_late_batch();"
    if op == "cp.async.wait_group":
        return f"emulation::wait_for_late({operands[0]});"
    if kind == "call":
        names = re.findall(r"\w+", ",".join(operands))
        if operands[0].startswith("("):  # what is returned, the function
            names[:2] = names[1::-1]
        return f"{names[0]}({', '.join(names[1:])});"
    if (expression := result(op, operands)) is not None:
        return f"put({register(operands[0])}, {expression});"
    sys.exit(f"{sys.argv[1]}: no instruction {op} {', '.join(operands)}")


def parameters(text):
    """[(name, bytes, alignment)]"""
    found = []
    for text in split(text):
        match = re.fullmatch(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(\w+)(?:\[(\d+)\])?", text)
        if not match:
            sys.exit(f"{sys.argv[1]}: expected a parameter, found {text}")
        found.append((match[3], size(match[2]) * int(match[4] or 1), int(match[1] or size(match[2]))))
    return found


def declaration(text):
    if registers := re.fullmatch(r"\.reg \.(\w+) (.*)", text):
        bits = "pred" if registers[1] == "pred" else f"b{8 * size(registers[1])}"
        names = []
        for name in split(registers[2]):
            many = re.fullmatch(r"(%\w+)<(\d+)>", name)
            names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
        return f"{bits} {', '.join('$' + name.lstrip('%') for name in names)};"
    if memory := re.fullmatch(r"\.local \.align (\d+) \.b8 (\w+)\[(\d+)\]", text):
        return f"alignas({memory[1]}) unsigned char {memory[2]}[{memory[3]}];"
    if text.startswith(".param"):
        (name, n, alignment), = parameters(text)
        return f"alignas({alignment}) unsigned char {name}[{n}];"
    if text.startswith(".pragma"):
        return ""
    sys.exit(f"{sys.argv[1]}: no directive {text}")


def body(text):
    for label, brace, code in re.findall(r"\s*(?:([$\w]+):(?!:)|([{}])|((?:[^;{}]|\{[^{};]*\})*?);)", text):
        code = " ".join(code.split())
        if label:
            yield f"{label}:;"
        elif brace:
            yield brace
        elif code.startswith("."):
            yield declaration(code)
        else:
            no, predicate, op, operands = re.fullmatch(r"(?:@(!?)(%\w+) )?([a-z][\w.:]*) ?(.*)", code).groups()
            line = statement(op, split(operands))
            yield f"if ({no}{register(predicate)}) {{ {line} }}" if predicate else line


def block(text, start):
    """Up to the brace that closes the one before `start`."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start:start + brace.start()]
    sys.exit(f"{sys.argv[1]}: expected a closing brace")


def main():
    ptx, kernels, out = sys.argv[1:]
    with open(ptx) as file:
        text = re.sub(r"//[^\n]*", "", file.read())
    first, bodies, known = [], [], []
    for name in re.findall(r"\.extern \.shared [^;]*?(\w+)\[\];", text):
        first.append(f"constexpr u64 {name} = 0;")
    for alignment, name, n, numbers in re.findall(r"\.global\s+\.align (\d+) \.b8 (\w+)\[(\d+)\]\s*=\s*\{([^}]*)\};", text):
        first.append(f"alignas({alignment}) const unsigned char {name}[{n}] = {{{numbers}}};")
    for head in re.finditer(r"\.(entry|func)\s*(?:\(([^)]*)\))?\s*(\w+)\s*\(([^)]*)\)[^{;]*([{;])", text):
        kind, returned, name, taken, after = head.groups()
        if after == ";":
            continue
        start, end = [], 0
        if kind == "entry":
            for parameter, n, alignment in parameters(taken):
                end = (end + alignment - 1) // alignment * alignment
                start.append(f"const unsigned char* const {parameter} = given + {end};")
                end += n
            # nvcc names a file's anonymous namespace, GCC and clang leave it at that.
            twin = re.sub(r"\d+_GLOBAL__N__[0-9a-f]+_\d+_\w+?_cu_[0-9a-f]{8}", "12_GLOBAL__N_1", name)
            known.append(f'extern "C" void twin_{len(known)}() asm("{twin}");\n'
                         f'const Known known_{len(known)}(twin_{len(known)}, "{twin}", {name}, {end});')
            signature = f"void {name}(const unsigned char* given)"
        else:
            signature = f"void {name}(" + ", ".join(f"unsigned char* {parameter}"
                                                    for parameter, _, _ in parameters(returned or "") + parameters(taken)) + ")"
        first.append(signature + ";")
        bodies.append("\n  ".join([signature + " {", "bool cc = false;", *start, *body(block(text, head.end()))]) + "\n}")
    with open(out, "w") as file:
        file.write("\n".join([f'#include "{kernels}"', "namespace kvreplay::cuda::ptx {", "namespace {", *first, *bodies, *known,
                              "}  // namespace", "}  // namespace kvreplay::cuda::ptx", ""]))


main()
