"""PyTorch and the fused losses that can be imported, as one process of `measure.py`.

Reads one JSON request a line from stdin and answers each with one JSON object a line on stdout; an answer with the key
`error` means that the request failed. All competitors share one pair of inputs, and each frees what it took.
"""

import json
import os
import statistics
import sys
import time
import warnings

# Whatever libraries print must not end up among the answers.
PROTOCOL = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

MATMUL = "matmul"
COMPETITORS = [
    "torch-eager",
    "torch-compile",
    "torch-linear-cross-entropy",
    "cut-cross-entropy",
    "cut-cross-entropy-unfiltered",
    "liger",
    "liger-sm90",
    "quack",
]


def loss_function(name, on_gpu):
    """A function of x, w and targets that gives the mean loss; raises where it is not there."""
    import torch
    import torch.nn.functional as F

    def eager(x, w, targets):
        return F.cross_entropy(F.linear(x, w), targets)

    if name == "torch-eager":
        return eager
    if name == "torch-compile":
        return torch.compile(eager, dynamic=False)
    if name.startswith("cut-cross-entropy"):
        from cut_cross_entropy import linear_cross_entropy

        # Its Triton kernels need a GPU.
        options = {} if on_gpu else {"impl": "torch_compile"}
        if name.endswith("-unfiltered"):
            if not on_gpu:
                raise RuntimeError("only its GPU kernels filter gradients")
            # Random inputs have hardly a probability above the filter's threshold: without it, as much work as here.
            options["filter_eps"] = None
        return lambda x, w, targets: linear_cross_entropy(x, w, targets, **options)
    if name == "torch-linear-cross-entropy":
        if not hasattr(F, "linear_cross_entropy"):
            raise RuntimeError(f"torch {torch.__version__} has no F.linear_cross_entropy")
        return lambda x, w, targets: F.linear_cross_entropy(x, w, targets)
    if name in ("liger-sm90", "quack"):
        if not on_gpu or torch.cuda.get_device_capability()[0] < 9:
            raise RuntimeError("its kernels need a GPU of compute capability 9.0 or more")
        if name == "quack":
            from quack.linear_cross_entropy import chunked_linear_cross_entropy

            return lambda x, w, targets: chunked_linear_cross_entropy(x, w, targets)
        from liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90 import (
            LigerFusedLinearCrossEntropySM90Function,
        )

        return lambda x, w, targets: LigerFusedLinearCrossEntropySM90Function.apply(x, w, targets)
    if name == "liger":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        if not on_gpu:
            raise RuntimeError("its kernels need a GPU")
        loss = LigerFusedLinearCrossEntropyLoss()
        return lambda x, w, targets: loss(w, x, targets)
    raise RuntimeError(f"no competitor {name!r} here")


class Peers:
    """Inputs of one shape, and the competitors that have run on it."""

    def __init__(self, device, shape, dtype):
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        tokens, hidden, vocab = shape
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        generator = torch.Generator(self.device).manual_seed(1)

        def normal(rows, scale):
            values = torch.empty(rows, hidden, dtype=dtype, device=self.device)
            return values.normal_(0.0, scale, generator=generator).requires_grad_()

        # As `vocabfuse bench` makes them: logits of standard deviation 2.
        self.x, self.w = normal(tokens, 1.0), normal(vocab, 2.0 / hidden**0.5)
        self.targets = torch.randint(vocab, (tokens,), device=self.device, generator=generator)
        self.steps = {}
        self.peaks = {}

    def step(self, name):
        """The work of a competitor as a function without arguments."""
        if name == MATMUL:
            x, w = self.x.detach(), self.w.detach()
            return lambda: self.torch.matmul(x, w.t())
        loss = loss_function(name, self.on_gpu)

        def both():
            loss(self.x, self.w, self.targets).backward()
            self.x.grad = self.w.grad = None

        return both

    def warm(self, name):
        """Gets a competitor ready, which may compile."""
        if name == "torch-compile":
            # Or a second shape would be compiled for any size, which is slower.
            self.torch._dynamo.reset()
        step = self.step(name)
        step()
        step()
        self.peaks[name] = self.peak(step)
        self.steps[name] = step
        self.release()

    def run(self, name, rounds):
        """Median milliseconds of some rounds, and bytes over the inputs."""
        if name not in self.steps:
            self.warm(name)
        step = self.steps[name]
        step()
        times = [self.time(step) for _ in range(rounds)]
        self.release()
        return {"ms": statistics.median(times), "peak_bytes": self.peaks[name]}

    def peak(self, step):
        if not self.on_gpu:
            return None
        self.release()
        before = self.torch.cuda.memory_allocated(self.device)
        self.torch.cuda.reset_peak_memory_stats(self.device)
        step()
        self.torch.cuda.synchronize(self.device)
        return self.torch.cuda.max_memory_allocated(self.device) - before

    def time(self, step):
        if not self.on_gpu:
            start = time.perf_counter()
            step()
            return (time.perf_counter() - start) * 1e3
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def release(self):
        """Hands memory back, for the competitors in other processes."""
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)
            self.torch.cuda.empty_cache()


def probe(device):
    import torch

    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        raise RuntimeError("this torch sees no GPU")
    name = torch.cuda.get_device_name(device) if on_gpu else None
    found = {}
    for competitor in COMPETITORS:
        try:
            loss_function(competitor, on_gpu)
            found[competitor] = None
        except Exception as error:
            found[competitor] = reason(error)
    return {"torch": torch.__version__, "gpu": name, "competitors": found}


def reason(error):
    # The first line says what failed; compilers add pages to it.
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:200]}"


def answer(state, request):
    op = request["op"]
    if op == "probe":
        state["device"] = request["device"]
        return probe(request["device"])
    if op == "load":
        state["peers"] = None
        state["peers"] = Peers(state["device"], request["shape"], request["dtype"])
        return {}
    if op == "warm":
        state["peers"].warm(request["competitor"])
        return {}
    if op == "run":
        return state["peers"].run(request["competitor"], request["rounds"])
    raise RuntimeError(f"no operation {op!r} here")


def main():
    warnings.simplefilter("ignore")
    state = {}
    for line in sys.stdin:
        try:
            reply = answer(state, json.loads(line))
        except Exception as error:  # The driver reports it and goes on without this competitor.
            reply = {"error": reason(error)}
        PROTOCOL.write(json.dumps(reply) + "\n")
        PROTOCOL.flush()


if __name__ == "__main__":
    main()
