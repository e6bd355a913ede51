"""Runs `vocabfuse run --check` on small ragged problems: every kernel on the device against the f64 reference.

Needs the standard library only. Exits with 1 if a check fails, with 2 if the device cannot be used, with 3 if it failed at
work or the program crashed: from then on a GPU may answer nothing.
"""

import argparse
import itertools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

IGNORED = -100

# Exit codes of vocabfuse.
WRONG, REFUSED, FAULT = 1, 2, 3


def problem(shape, options):
    """Name of the file that a case reads: operators on distributions read others than cross-entropy."""
    return "x".join(str(size) for size in shape) + ("-operators" if "--op" in options.split() else "")


def write_problem(path, tokens, hidden, vocab, seed, operators):
    """A safetensors file with every tensor that `run` reads. Among the last tokens one is ignored."""
    rng = random.Random(seed)
    spread = 3.0 / math.sqrt(hidden)

    def values(count, scale):
        return struct.pack(f"<{count}f", *(rng.uniform(-scale, scale) for _ in range(count)))

    targets = [rng.randrange(vocab) for _ in range(tokens)]
    # The first and the last class, an ignored token, and two tokens with one target are edges of their own.
    for position, target in zip(range(tokens - 1, 0, -1), [vocab - 1, 0, IGNORED, targets[0]]):
        targets[position] = target
    tensors = [
        ("x", "F32", [tokens, hidden], values(tokens * hidden, 1.7)),
        ("w", "F32", [vocab, hidden], values(vocab * hidden, spread)),
        ("ids" if operators else "targets", "I64", [tokens], struct.pack(f"<{tokens}q", *targets)),
        ("bias", "F32", [vocab], values(vocab, 0.5)),
        ("upstream", "F32", [tokens], values(tokens, 2.0)),
    ]
    if operators:
        tensors += [
            ("teacher_x", "F32", [tokens, hidden + 8], values(tokens * (hidden + 8), 1.7)),
            ("teacher_w", "F32", [vocab, hidden + 8], values(vocab * (hidden + 8), spread)),
        ]
    header, offset = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data)


def has_step(binary):
    """Whether `run` of this program replays recorded steps."""
    ended = subprocess.run([binary, "run", "--help"], capture_output=True, text=True, timeout=60, check=False)
    return "--step" in ended.stdout.split()


def cases(gpu, step):
    """Problem, and options of `run`: what differs in kernels, schedules and edges."""
    ragged = (70, 136, 1000)
    ranks = ["--ranks 1", "--ranks 2", "--bounds 0,300,300,1000"]
    for dtype, save, algorithm, rank in itertools.product(
        ["bf16", "f16"], ["yes", "no"], ["naive", "one", "two"], ranks
    ):
        yield ragged, f"--dtype {dtype} --save {save} --algorithm {algorithm} {rank} --chunk 512"
    # The chunk that large problems take, with a second, ragged chunk; more tokens than a tile.
    for dtype, save in itertools.product(["bf16", "f16"], ["yes", "no"]):
        yield (129, 200, 9001), f"--dtype {dtype} --save {save} --chunk 8192"
        yield (1, 8, 5), f"--dtype {dtype} --save {save}"
    for option in ["--logit-scale -0.5", "--reduction none", "--reduction sum"]:
        yield ragged, f"--dtype bf16 {option}"
    for save in ["yes", "no"]:
        # The check compares with a composition in f32, which tf32 alone does not reach.
        yield ragged, f"--dtype f32 --save {save} --chunk 512" + (" --precision tf32x3" if gpu else "")
    if gpu and step:
        for options in ["--dtype bf16", "--dtype f16", "--dtype f32 --precision tf32x3"]:
            for save in ["yes", "no"]:
                yield ragged, f"{options} --save {save} --chunk 512 --step"
    # Operators, over more than one of their chunks.
    for operator in ["logprobs", "entropy", "logprobs-entropy", "kl", "kl --reverse", "top-k --k 9", "sample --seed 7"]:
        yield (129, 40, 4200), f"--op {operator} --dtype bf16"
        yield ragged, f"--op {operator} --dtype f16 --softcap 5 --bounds 0,300,300,1000"
        yield ragged, f"--op {operator} --dtype f32" + (" --precision tf32x3" if gpu else "")


def check(arguments, folder, number, shape, options):
    """Runs one case; its exit code and a line about it."""
    name = problem(shape, options)
    output = os.path.join(folder, f"out{number}.safetensors")
    command = [arguments.binary, "run", "--input", os.path.join(folder, f"{name}.safetensors"), "--output", output]
    command += ["--device", arguments.device, "--check", "--json", *options.split()]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=arguments.patience, check=False)
    except subprocess.TimeoutExpired:
        return FAULT, f"{name} {options}: no answer within {arguments.patience} s"
    if os.path.exists(output):
        os.remove(output)
    if ended.returncode == 0 and json.loads(ended.stdout)["passed"] is True:
        return 0, None
    lines = ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"]
    # A signal is a negative number here.
    code = ended.returncode if ended.returncode in (WRONG, REFUSED) else FAULT if ended.returncode else WRONG
    return code, f"{name} {options}: {lines[-1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--budget", type=float, default=75.0, help="seconds; cases beyond it are left out, and said so")
    parser.add_argument("--patience", type=float, default=25.0, help="seconds that one case may take")
    arguments = parser.parse_args()

    start = time.monotonic()
    gpu = arguments.device != "cpu"
    step = gpu and has_step(arguments.binary)
    if gpu and not step:
        print("recorded steps: this program has no run --step")
    todo = list(cases(gpu, step))
    with tempfile.TemporaryDirectory() as folder:
        for seed, (shape, name) in enumerate(sorted({(shape, problem(shape, options)) for shape, options in todo})):
            operators = name.endswith("-operators")
            write_problem(os.path.join(folder, f"{name}.safetensors"), *shape, seed, operators)
        # One alone first: it says whether the device can be used at all.
        code, line = check(arguments, folder, 0, *todo[0])
        if code == REFUSED:
            print(f"device {arguments.device} cannot be used: {line.split(': ', 1)[-1]}")
            return 2
        results = [(code, line)]

        def run(numbered):
            number, (shape, options) = numbered
            if time.monotonic() - start > arguments.budget:
                return None
            return check(arguments, folder, number, shape, options)

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            results += pool.map(run, enumerate(todo[1:], 1))

    # f32 has no kernels on some architectures; a refusal is no wrong result. The other types run on all.
    refused = [line for code, line in filter(None, results) if code == REFUSED and "--dtype f32" in line]
    faults = [line for code, line in filter(None, results) if code == FAULT]
    failures = [line for code, line in filter(None, results) if code != 0 and line not in refused]
    left_out = results.count(None)
    for line in refused:
        print(f"refused {line}")
    for line in failures:
        print(f"DEVICE FAULT {line}" if line in faults else f"FAILED {line}")
    passed = len(results) - left_out - len(failures) - len(refused)
    print(f"correctness on {arguments.device}: {passed} of {len(results)} cases passed, {len(failures)} failed", end="")
    print(f", {len(faults)} of them by a fault of the device" if faults else "", end="")
    print(f", {len(refused)} refused" if refused else "", end="")
    print(f", {left_out} left out for want of time" if left_out else "", end="")
    print(f" ({time.monotonic() - start:.0f} s)")
    return FAULT if faults else WRONG if failures else 0


if __name__ == "__main__":
    sys.exit(main())
