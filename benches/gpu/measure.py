"""Times `vocabfuse bench` and the competitors of `peers.py` in turn, and prints a table in markdown.

Needs the standard library only: without torch the table has vocabfuse alone. Exits with 1 if vocabfuse refuses, or a
check of its results at full size fails, with 3 if its device failed at work or it crashed.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time

MODES = {"vocabfuse, saved": ["--save", "yes"], "vocabfuse, recompute": ["--save", "no"]}
STEP = {"vocabfuse, recorded step": ["--save", "yes", "--step"]}
MATMUL = "matmul"
MOST_TURNS = 7
# A round of vocabfuse copies W and dW over the bus, outside of what is timed: the others have time for more rounds.
PEER_ROUNDS = 3


class Worker:
    """A process of `peers.py`, started anew when it dies or does not answer."""

    def __init__(self, device):
        self.device = device
        self.process = self.shape = None

    def ask(self, request, seconds):
        """The answer; one with `error` also when there is none."""
        if self.process is None:
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers.py")
            self.process = subprocess.Popen(
                [sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            if request["op"] != "probe":
                self.ask({"op": "probe", "device": self.device}, 60)
            if request["op"] in ("warm", "run") and self.shape is not None:
                self.ask(self.shape, 60)
        if request["op"] == "load":
            self.shape = request
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
            # One answer a request, so nothing waits in a buffer.
            ready, _, _ = select.select([self.process.stdout], [], [], max(seconds, 1))
            line = self.process.stdout.readline() if ready else b""
        except OSError:
            line, ready = b"", [self.process]
        if line:
            return json.loads(line)
        self.stop()
        return {"error": "its process ended" if ready else f"no answer within {seconds:.0f} s"}

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Failed(Exception):
    """vocabfuse did not run, or its results are wrong. `fault` if its device failed, or it crashed."""

    def __init__(self, message, fault):
        super().__init__(message)
        self.fault = fault


def has_step(binary):
    """Whether `bench` of this program replays recorded steps."""
    ended = subprocess.run([binary, "bench", "--help"], capture_output=True, text=True, timeout=60, check=False)
    return "--step" in ended.stdout.split()


def bench(arguments, shape, mode, check, seconds):
    """One run of `vocabfuse bench`; its JSON object."""
    tokens, hidden, vocab = (str(size) for size in shape)
    command = [arguments.binary, "bench", "--device", arguments.device, "--dtype", arguments.dtype, *mode]
    command += ["--tokens", tokens, "--hidden", hidden, "--vocab", vocab, "--rounds", str(arguments.rounds), "--json"]
    command += ["--check"] if check else []
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1), check=False)
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"]
        raise Failed(lines[-1], ended.returncode not in (1, 2))
    return json.loads(ended.stdout)


class Shape:
    """What was measured at one shape, by competitor: a list with one entry a turn."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.turns = {}
        self.failures = {}
        self.correct = True
        self.fault = False

    def add(self, name, entry):
        self.turns.setdefault(name, []).append(entry)

    def median(self, name, key="ms"):
        values = [turn[key] for turn in self.turns.get(name, []) if turn.get(key) is not None]
        return statistics.median(values) if values else None

    def tflops(self, name, products):
        ms = self.median(name)
        tokens, hidden, vocab = self.sizes
        return products * tokens * hidden * vocab / (ms * 1e9) if ms else None

    def ratio(self, name, best):
        """Time over that of the fastest vocabfuse, pair by pair."""
        pairs = zip(self.turns.get(name, []), self.turns.get(best, []))
        ratios = [theirs["ms"] / ours["ms"] for theirs, ours in pairs]
        return statistics.median(ratios) if ratios else None


def entry(report):
    """A turn of vocabfuse from its JSON object."""
    passes = report["passes"]
    return {
        "ms": passes["whole"]["median_ms"],
        "s": passes["s"]["median_ms"],
        "c1": passes["combine"]["median_ms"],
        "t": passes["t"]["median_ms"],
        # Memory of the host is not counted as the device's is.
        "peak_bytes": report["peak_bytes"],
        "clock": report["clock"],
        "device": report["device"],
    }


def measure(arguments, sizes, worker, competitors, deadline):
    """Turns of all competitors in turn, while another turn fits before the deadline; one at least."""
    shape = Shape(sizes)
    peers = list(competitors)
    if peers:
        reply = worker.ask({"op": "load", "shape": sizes, "dtype": arguments.dtype}, 60)
        if "error" in reply:
            print(f"torch at {sizes}: {reply['error']}")
            peers = []
    for name in list(peers):
        # Compiling takes a while, but each competitor does it once, and leaves time for the others.
        seconds = max(10.0, (deadline - time.monotonic()) / 2)
        reply = worker.ask({"op": "warm", "competitor": name}, seconds)
        if "error" in reply:
            peers.remove(name)
            shape.failures[name] = reply["error"]
    for turn in range(MOST_TURNS):
        start = time.monotonic()
        for name, mode in MODES.items():
            if name in shape.failures:
                continue
            try:
                report = bench(arguments, sizes, mode, turn == 0, deadline + 30 - time.monotonic())
            except Failed as error:
                shape.failures[name] = f"{'DEVICE FAULT' if error.fault else 'FAILED'}: {error}"
                shape.correct = False
                shape.fault |= error.fault
                continue
            if report is None:
                shape.failures[name] = "out of time"
            else:
                shape.add(name, entry(report))
        for name in list(peers):
            seconds = deadline + 10 - time.monotonic()
            if seconds < 1:
                reply = {"error": "out of time"}
            else:
                reply = worker.ask({"op": "run", "competitor": name, "rounds": PEER_ROUNDS * arguments.rounds}, seconds)
            if "error" in reply:
                peers.remove(name)
                shape.failures[name] = reply["error"]
            else:
                shape.add(name, reply)
        # The first turn checks at full size, too.
        if time.monotonic() + (0.8 if turn == 0 else 1.0) * (time.monotonic() - start) > deadline:
            break
    for name, failure in shape.failures.items():
        print(f"{name} at {sizes}: {failure}")
    return shape


def cell(value, form):
    return "" if value is None else format(value, form)


def rows(shape):
    """Rows of the table."""
    ours = [name for name in MODES if shape.turns.get(name)]
    best = min(ours, key=shape.median) if ours else None
    matmul = shape.tflops(MATMUL, 2)
    sizes = ",".join(str(size) for size in shape.sizes)
    turns = max((len(turns) for turns in shape.turns.values()), default=0)
    for name in [*MODES, *(name for name in shape.turns if name not in MODES)]:
        if not shape.turns.get(name):
            continue
        rate = shape.tflops(name, 2 if name == MATMUL else 6)
        share = None if rate is None or not matmul else 100 * rate / matmul
        peak = shape.median(name, "peak_bytes")
        yield [
            sizes,
            f"{name} (2NVH)" if name == MATMUL else name,
            *(cell(shape.median(name, key), ".3f") for key in ["s", "c1", "t", "ms"]),
            cell(rate, ".4g"),
            cell(share, ".0f") + (" %" if share is not None else ""),
            cell(None if peak is None else peak / 2**20, ".0f"),
            "" if name == MATMUL or best is None else cell(shape.ratio(name, best), ".2f"),
            str(turns),
        ]


def table(shapes):
    head = ["N,H,V", "", "S ms", "C1 ms", "T ms", "whole ms", "TFLOP/s", "of matmul", "MiB over inputs", "time ratio"]
    lines = [[*head, "turns"], ["---"] * (len(head) + 1)]
    lines += [row for shape in shapes for row in rows(shape)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--shapes", required=True, help="N,H,V of each, with spaces between them")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a turn; their median counts")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds")
    arguments = parser.parse_args()
    sizes = [[int(size) for size in shape.split(",")] for shape in arguments.shapes.split()]

    start = time.monotonic()
    if arguments.device.startswith("cuda"):
        if has_step(arguments.binary):
            MODES.update(STEP)
        else:
            print("recorded steps: this program has no bench --step")
    worker = Worker(arguments.device)
    found = worker.ask({"op": "probe", "device": arguments.device}, 60)
    competitors = []
    if "error" in found:
        print(f"torch: {found['error']}; no comparison, and no share of a matmul")
    else:
        missing = {name: why for name, why in found["competitors"].items() if why is not None}
        competitors = [MATMUL, *(name for name in found["competitors"] if name not in missing)]
        for name, why in missing.items():
            print(f"{name}: not here ({why})")
    shapes = []
    try:
        for number, shape in enumerate(sizes):
            # What one shape leaves over, the next ones share.
            left = arguments.budget - (time.monotonic() - start)
            deadline = time.monotonic() + left / (len(sizes) - number)
            shapes.append(measure(arguments, shape, worker, competitors, deadline))
    finally:
        worker.stop()

    turns = [turn for shape in shapes for name in MODES for turn in shape.turns.get(name, [])]
    if turns:
        card = found.get("gpu") or turns[0]["device"]
        events = turns[0]["clock"] == "events"
        clock = "CUDA events, without copies from and to the host" if events else "the host's clock"
        print(f"\n{card}, {arguments.dtype}, torch {found.get('torch', 'none')}; vocabfuse by {clock}.")
        rounds = f"{arguments.rounds} rounds, of the others {PEER_ROUNDS * arguments.rounds}"
        print(f"Forward and backward; TFLOP/s of 6NVH; medians over turns of {rounds}, interleaved.")
        print("vocabfuse gives dX and dW in f32, the others in the type of their inputs.\n")
        print(table(shapes))
    if any(shape.fault for shape in shapes):
        return 3
    return 0 if turns and all(shape.correct for shape in shapes) else 1


if __name__ == "__main__":
    sys.exit(main())
