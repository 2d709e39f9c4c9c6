"""Fails if anything is wrong on the custom device ``sim:0``."""

import warnings
from contextlib import nullcontext

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

import numpy as np

import tensorstash as ts
from tensorstash.backends import backend_named
from tensorstash.backends.paddle.layout import private_copy

LINES = ["cpu_offload", "compress | disk_spill"]

LAYOUTS = {
    "contiguous": lambda x: x,
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 1:4],
    "transposed": lambda x: x.transpose([1, 0]),
    "reversed": lambda x: x[::-1],
    "every other": lambda x: x[:, ::2],
    "expanded": lambda x: x[1:2].expand([3, 6]),
    "0-d": lambda x: x[1, 2],
}


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


def gradients_are_those_without_hooks_and_tensors_are_moved():
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
        return [parameter.grad.numpy().tobytes() for parameter in model.parameters()]

    plain = gradients(nullcontext())
    for line in LINES:
        stash = ts.stash(ts.parse(line), framework="paddle", min_bytes=0)
        assert [gradients(stash) for _ in range(2)] == [plain] * 2, line
        stats = stash.stats()
        assert stats.stashed.tensors > 10, line
        assert stats.waits == {"sim:0": "its backend has no streams"}, line


def every_layout_is_rebuilt_and_copied_exactly():
    backend = backend_named("paddle")
    for name, view in LAYOUTS.items():
        tensor = view(paddle.arange(24, dtype="float32").reshape([4, 6]))
        spec = backend.spec(tensor)
        for made in (backend.from_host(backend.to_host(tensor, spec), spec), private_copy(tensor)):
            assert (values(made), layout(made)) == (values(tensor), layout(tensor)), name


def what_is_saved_in_strides_has_the_gradients_that_it_has_without_hooks():
    leaf = paddle.to_tensor(np.arange(24, dtype="float32").reshape(4, 6) / 7, stop_gradient=False)
    programs = {name: lambda x, view=view: view(x).tanh() * view(x) for name, view in LAYOUTS.items()}
    programs["scores"] = lambda x: paddle.nn.functional.softmax(x.transpose([1, 0]).matmul(x))

    def gradient(program, scope):
        leaf.clear_gradient()
        with scope:
            loss = program(leaf * 2.0).sum()
        loss.backward()
        return leaf.grad.numpy().tobytes()

    for name, program in programs.items():
        stashes = {line: ts.stash(ts.parse(line), framework="paddle", min_bytes=0) for line in LINES}
        for way, scope in {**stashes, "pair": ts.saved_tensors_hooks(lambda t: t.numpy(), paddle.to_tensor)}.items():
            assert gradient(program, scope) == gradient(program, nullcontext()), (name, way)


if __name__ == "__main__":
    paddle.set_device("sim:0")
    gradients_are_those_without_hooks_and_tensors_are_moved()
    every_layout_is_rebuilt_and_copied_exactly()
    what_is_saved_in_strides_has_the_gradients_that_it_has_without_hooks()
    print("exact on", paddle.get_device())
