"""Runs what the command line names on the custom device ``sim:0``, and prints what it found as JSON."""

import ctypes
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

import numpy as np
from delays import NBYTES, Dice, delays

import tensorstash as ts
from tensorstash.backends import backend_named
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.paddle.layout import private_copy
from tensorstash.engine.session import Session

LINES = ["cpu_offload", "compress", "compress | disk_spill", "disk_spill"]
LIMITS = [ts.Limits(), ts.Limits(in_flight=0, ahead=0)]

LAYOUTS = {
    "contiguous": lambda x: x,
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 1:4],
    "transposed": lambda x: x.transpose([1, 0]),
    "reversed": lambda x: x[::-1],
    "expanded": lambda x: x[1:2].expand([3, 6]),
    "0-d": lambda x: x[1, 2],
}


def device_library():
    """Return what is set and read of the device."""
    library = ctypes.CDLL(str(next(Path(os.environ["CUSTOM_DEVICE_ROOT"]).glob("*.so"))))
    library.set_delays.argtypes = [ctypes.c_double]
    for name in ("live", "peak"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def values(tensor):
    """Return what a tensor shows, read without any kernel of the device."""
    start = sum(min(0, (size - 1) * stride) for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    spread = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    lowest = tensor._offset() + start * tensor.element_size()
    run = paddle.as_strided(tensor.detach(), [spread + 1], [1], lowest)._copy_to(paddle.CPUPlace(), True)
    strides = [stride * tensor.element_size() for stride in tensor.strides]
    flat = run.numpy()
    return np.lib.stride_tricks.as_strided(flat[-start:], tensor.shape, strides).tolist()


def layout(tensor):
    return [list(tensor.shape), list(tensor.strides), tensor._offset(), str(tensor.place)]


class Images(paddle.nn.Layer):
    """Convolutions with batch normalisation and a residual."""

    def __init__(self):
        super().__init__()
        self.enter = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3, padding=1), paddle.nn.BatchNorm2D(4))
        self.inner = paddle.nn.Sequential(paddle.nn.ReLU(), paddle.nn.Conv2D(4, 4, 3, padding=1), paddle.nn.ReLU())

    def forward(self, images):
        hidden = self.enter(images)
        return (hidden + self.inner(hidden)).square().mean()


class Language(paddle.nn.Layer):
    """Tokens to the loss of the next one, with dropout."""

    def __init__(self, width=16):
        super().__init__()
        self.tokens = paddle.nn.Embedding(20, width)
        self.inner = paddle.nn.Sequential(paddle.nn.LayerNorm(width), paddle.nn.Linear(width, width), paddle.nn.GELU())
        self.leave = paddle.nn.Sequential(paddle.nn.Dropout(0.1), paddle.nn.Linear(width, 20))

    def forward(self, x):
        tokens = (x.abs() * 6).clip(max=19).astype("int64")
        hidden = self.tokens(tokens)
        return paddle.nn.functional.cross_entropy(self.leave(hidden + self.inner(hidden)), tokens)


class Layers(paddle.nn.Layer):
    """Linear layers, whose results are saved over and over."""

    def __init__(self):
        super().__init__()
        self.inner = paddle.nn.Sequential(*(paddle.nn.Linear(16, 16) for _ in range(3)))

    def forward(self, x):
        hidden = self.inner(x).tanh()
        return (hidden * hidden.tanh()).sum()


MODELS = {"language": (Language, [2, 6]), "images": (Images, [2, 3, 6, 6]), "layers": (Layers, [8, 16])}


def steps(model, data, scope, number=2):
    """Return the gradients of some steps."""
    found = []
    for step in range(number):
        paddle.seed(step)
        with scope():
            loss = model(data)
        loss.backward()
        found += [parameter.grad.numpy().tobytes() for parameter in model.parameters() if parameter.grad is not None]
        model.clear_gradients()
    return found


def schedules():
    """Return the seeds under which gradients were not those without hooks, or bytes were left, and how many ran."""
    first, runs = (
        int(os.environ.get(f"TENSORSTASH_SCHEDULES{end}", default)) for end, default in (("_FROM", 0), ("", 3))
    )
    runtime, wrong, ran = device_library(), [], 0
    for name, (build, shape) in MODELS.items():
        paddle.seed(0)
        model, data = build(), paddle.randn(shape)
        expected = steps(model, data, warnings.catch_warnings)
        before = paddle.device.memory_allocated("sim:0")
        for seed in range(first, first + runs):
            dice = Dice(seed)
            runtime.set_delays(dice.choice([0.0, 0.0002, 0.001]))
            with tempfile.TemporaryDirectory() as folder:
                disk = ts.DiskSpill(folder)
                policies = [
                    ts.CpuOffload(),
                    ts.Compress(min_ratio=1),
                    disk,
                    ts.CpuOffload() | ts.Compress(min_ratio=1),
                    ts.Compress(min_ratio=1) | disk,
                ]
                limits = ts.Limits(
                    in_flight=dice.choice(NBYTES),
                    ahead=dice.choice(NBYTES),
                    writers=dice.choice([1, 2]),
                    readers=dice.choice([1, 2]),
                )
                session = Session(
                    dice.choice(policies), PaddleBackend(), min_bytes=dice.choice([0, 300]), limits=limits
                )
                with delays(dice):
                    got = steps(model, data, session.scope)
                moved = session.stats().stashed.tensors
                session.drain()  # a writer that is at a tensor holds it
                del session
            paddle.device.synchronize("sim:0")
            left = paddle.device.memory_allocated("sim:0") - before
            ran += 1
            if got != expected or left or not moved:
                wrong.append([name, seed, got == expected, left, moved])
    runtime.set_delays(0.0)
    return [wrong, ran]


def deep():
    """Return a model of linear layers, and its input."""
    paddle.seed(0)
    layers = [
        layer for _ in range(6) for layer in (paddle.nn.Linear(64, 256), paddle.nn.GELU(), paddle.nn.Linear(256, 64))
    ]
    return paddle.nn.Sequential(*layers), paddle.randn([256, 64])


class Chain(paddle.nn.Layer):
    """Saves each result as soon as it is there, when a forward pass takes most."""

    def __init__(self):
        super().__init__()
        self.scale = self.create_parameter([256])

    def forward(self, x):
        hidden = x * self.scale
        for _ in range(4):
            hidden = hidden.tanh()
        return hidden


def chain():
    """Return a model of results that are saved at once, and its input."""
    paddle.seed(0)
    return Chain(), paddle.randn([64, 256])


def peak(model, data, scope):
    """Return the most bytes of the device beyond the model, as it counts them: of a forward pass, and of a step."""
    library = device_library()
    before = library.live()
    library.reset_peak()
    with scope():
        loss = model(data).square().mean()
    forward = library.peak() - before
    loss.backward()
    found = [forward, library.peak() - before]
    del loss
    model.clear_gradients()
    return found


def peaks(scopes, build=deep):
    """Return the peaks of a step in each scope, of which none is the first."""
    model, data = build()
    peak(model, data, warnings.catch_warnings)
    return [peak(model, data, scope) for scope in scopes]


def on_host():
    """Return hooks that keep each saved tensor as an array of the host."""
    return ts.saved_tensors_hooks(lambda tensor: tensor.numpy(), paddle.to_tensor)


def memory():
    """Return, for each model, peaks without a policy, with all on the host, and offloaded."""
    offloaded = ts.stash(ts.CpuOffload(), framework="paddle", min_bytes=0, limits=ts.Limits(in_flight=0, ahead=0))
    return [peaks([warnings.catch_warnings, on_host, lambda: offloaded], build) for build in (deep, chain)]


def training():
    """Return, for each policy, whether gradients are those without it, how many tensors were moved, and what waited."""
    paddle.seed(0)
    block = lambda: [paddle.nn.Linear(16, 64), paddle.nn.GELU(), paddle.nn.Linear(64, 16), paddle.nn.LayerNorm(16)]  # noqa: E731
    model = paddle.nn.Sequential(*block(), *block())
    data = paddle.randn([8, 16])

    def gradients(scope):
        model.clear_gradients()
        with scope:
            hidden = model(data)
            loss = (hidden.reshape([2, 4, 16]).tanh() * hidden.reshape([2, 4, 16])).sum()
        loss.backward()
        return [parameter.grad.numpy() for parameter in model.parameters()]

    plain = gradients(warnings.catch_warnings())
    found = {}
    for line in LINES:
        for number, limits in enumerate(LIMITS):
            stash = ts.stash(ts.parse(line), framework="paddle", min_bytes=0, limits=limits)
            same = [all(map(np.array_equal, plain, gradients(stash))) for _ in range(2)]
            stats = stash.stats()
            found[f"{line} {number}"] = [all(same), stats.stashed.tensors, dict(stats.waits)]
    return found


def layouts():
    """Return, for each layout, what a tensor shows and is laid out as, before and after it was moved or copied."""
    backend, found = backend_named("paddle"), {}
    for name, view in LAYOUTS.items():
        tensor = view(paddle.arange(24, dtype="float32").reshape([4, 6]))
        spec = backend.spec(tensor)
        rebuilt = backend.from_host(backend.to_host(tensor, spec), spec)
        found[name] = [[values(one), layout(one)] for one in (tensor, rebuilt, private_copy(tensor))]
    return found


def hooks():
    """Return gradients without hooks, and under hooks whose unpack gives tensors laid out in another way."""
    leaf = paddle.to_tensor(np.arange(6, dtype="float32").reshape(2, 3), stop_gradient=False)

    def gradient(scope):
        leaf.clear_gradient()
        with scope:
            loss = (leaf * 2.0).tanh().sum()
        loss.backward()
        return leaf.grad.numpy().tolist()

    def unpack(array):
        whole = paddle.to_tensor(np.concatenate([np.zeros_like(array), array]))
        return whole[len(array) :]

    return [gradient(warnings.catch_warnings()), gradient(ts.saved_tensors_hooks(lambda t: t.numpy(), unpack))]


STRIDED = {
    "transposed": lambda x: x.transpose([1, 0]) * x.transpose([1, 0]),
    "columns": lambda x: x[:, 1:3].tanh() * x[:, 1:3],
    "reversed": lambda x: x[::-1] * x[::-1],
    "every other": lambda x: x[:, ::2] * x[:, ::2],
    "scores": lambda x: paddle.nn.functional.softmax(x.transpose([1, 0]).matmul(x)),
}


def strided():
    """Return whether programs that save what is not contiguous have the gradients that they have without hooks."""
    leaf = paddle.to_tensor(np.arange(12, dtype="float32").reshape(3, 4) / 7, stop_gradient=False)

    def gradient(program, scope):
        leaf.clear_gradient()
        with scope:
            loss = program(leaf * 2.0).sum()
        loss.backward()
        return leaf.grad.numpy().tobytes()

    ways = {
        "another layout": lambda: ts.saved_tensors_hooks(lambda t: t.numpy(), paddle.to_tensor),
        **{line: lambda line=line: ts.stash(ts.parse(line), framework="paddle", min_bytes=0) for line in LINES},
    }
    return {
        f"{name}, {way}": gradient(program, warnings.catch_warnings()) == gradient(program, ways[way]())
        for name, program in STRIDED.items()
        for way in ways
    }


if __name__ == "__main__":
    paddle.set_device("sim:0")
    parts = {part.__name__: part for part in (training, layouts, hooks, schedules, memory, strided)}
    print(json.dumps({name: parts[name]() for name in sys.argv[1:]}))
