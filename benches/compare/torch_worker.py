"""The PyTorch competitors of `cargo xtask compare`, one a process.

Speaks the protocol of worker.rs: one JSON object a line on stdin, one on stdout for each. An answer with the key
`error` means that the request failed.
"""

import ctypes
import gc
import json
import os
import sys
import time
import warnings

# Libraries print to stdout now and then; the protocol keeps it for itself, they get stderr.
PROTOCOL = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def memory(field):
    """A line of /proc/self/status in bytes, or None."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def forget_peak():
    """Lets VmHWM begin anew; where that is not allowed it covers the whole process."""
    try:
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
    except OSError:
        pass


def trim():
    """Gives free memory back to the system, so that it does not count as in use."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        pass


def loss_function(name):
    """The function (x, w, targets) -> mean loss, its name for the table, and whether it compiles itself."""
    import torch
    import torch.nn.functional as F

    def eager(x, w, targets):
        return F.cross_entropy(F.linear(x, w), targets)

    if name == "torch-eager":
        return eager, "F.linear + F.cross_entropy", False
    if name == "torch-compile":
        return torch.compile(eager, dynamic=False), "inductor", True
    if name.startswith("torch-linear-cross-entropy"):
        fused = getattr(F, "linear_cross_entropy", None)
        if fused is None:
            raise RuntimeError(f"torch {torch.__version__} has no F.linear_cross_entropy")
        if not name.endswith("-chunked"):
            return fused, "default options", False
        options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
        if options is None:
            raise RuntimeError(f"F.linear_cross_entropy of torch {torch.__version__} has no options")
        options = options()
        return lambda x, w, targets: fused(x, w, targets, options=options), "LinearCrossEntropyOptions()", False
    if name == "cut-cross-entropy":
        try:
            from cut_cross_entropy import linear_cross_entropy
        except ImportError as error:
            raise RuntimeError(f"cut_cross_entropy cannot be imported: {error}") from error
        return lambda x, w, targets: linear_cross_entropy(x, w, targets, impl="torch_compile"), "torch_compile", True
    raise RuntimeError(f"no competitor {name!r} here")


class Rival:
    """A competitor with its inputs."""

    def __init__(self, name, shape, rows):
        import torch

        self.torch = torch
        torch.set_num_threads(shape["threads"])
        self.dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[shape["dtype"]]
        self.function, self.device, compiles = loss_function(name)
        self.rows = torch.tensor(rows)
        self.loss = self.sample = None

        # A tiny problem first: it starts threads and loads code, which is no memory of the method.
        self.x, self.w = self.matrix(torch.ones(64, 64)), self.matrix(torch.ones(256, 64))
        self.targets = torch.zeros(64, dtype=torch.int64)
        self.step()
        self.x.grad = self.w.grad = None
        if compiles:
            # Or the second shape would be compiled for any size, which is slower.
            torch._dynamo.reset()

        n, h, v = shape["tokens"], shape["hidden"], shape["vocab"]
        self.x = self.matrix(self.read(shape, "x.bin", torch.float32).view(n, h))
        self.w = self.matrix(self.read(shape, "w.bin", torch.float32).view(v, h))
        self.targets = self.read(shape, "targets.bin", torch.int64)
        self.output_bytes = (n + v) * h * self.x.element_size()
        trim()
        self.loaded = memory("VmRSS:")
        self.run()
        trim()
        forget_peak()

    def matrix(self, values):
        return values.to(self.dtype).requires_grad_()

    def read(self, shape, name, dtype):
        path = os.path.join(shape["folder"], name)
        values = self.torch.empty(os.path.getsize(path) // dtype.itemsize, dtype=dtype)
        # Straight into the tensor: numpy need not be there.
        buffer = (ctypes.c_char * (values.numel() * dtype.itemsize)).from_address(values.data_ptr())
        with open(path, "rb") as file:
            if file.readinto(buffer) != len(buffer):
                raise RuntimeError(f"{name} is truncated")
        return values

    def step(self):
        loss = self.function(self.x, self.w, self.targets)
        loss.backward()
        return loss

    def run(self):
        """Forward and backward; milliseconds. Gradients are allocated within that time."""
        start = time.perf_counter()
        loss = self.step()
        ms = (time.perf_counter() - start) * 1e3
        self.loss = loss.item()
        self.sample = self.w.grad[self.rows].float()
        self.x.grad = self.w.grad = None
        return ms

    def results(self, path):
        with open(path, "wb") as file:
            file.write(ctypes.string_at(self.sample.data_ptr(), self.sample.numel() * 4))
        finite = self.loss == self.loss and abs(self.loss) != float("inf")
        peak = memory("VmHWM:")
        over = None if peak is None or self.loaded is None else max(peak - self.loaded, 0)
        return {"loss": self.loss if finite else None, "peak_bytes": over}


def answer(state, request):
    op = request["op"]
    if op == "probe":
        import torch

        return {"torch": torch.__version__}
    if op == "load":
        rival = state["rival"] = Rival(request["competitor"], request["shape"], request["rows"])
        # Logits, dX and dW, whatever the method is.
        return {"products": 3, "output_bytes": rival.output_bytes, "device": rival.device}
    if op == "run":
        return {"ms": state["rival"].run()}
    if op == "results":
        return state["rival"].results(request["path"])
    raise RuntimeError(f"no operation {op!r} here")


def main():
    warnings.simplefilter("ignore")
    state = {}
    for line in sys.stdin:
        try:
            reply = answer(state, json.loads(line))
        except Exception as error:  # The driver reports it and goes on without this competitor.
            # The first line says what failed; compilers add pages to it.
            text = str(error).strip().splitlines() or ["no message"]
            reply = {"error": f"{type(error).__name__}: {text[0][:300]}"}
        PROTOCOL.write(json.dumps(reply) + "\n")
        PROTOCOL.flush()


main()
