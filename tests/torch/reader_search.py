"""Search for the operations of PyTorch that lossy tensors harm: one saved tensor at a time is handed to its reader as a
lossy codec brings it back, and the reader's gradients are compared with those from the tensor itself.

``python tests/torch/reader_search.py`` runs all of it, prints the table, and says where the list in
``tensorstash/backends/torch/readers.txt`` says less.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf, sqrt
from typing import Any

import torch
from operator_layouts import reseed, samples_of
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_leaves, tree_map

import tensorstash as ts
from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.backends.torch.readers import Demand, demand, shown
from tensorstash.host.arrays import borrowed
from tensorstash.policies.plan import HookPolicy

BOUND = 0.1
"""The bound of gradients of an operation whose readers take any tensor, under ``Quantize(8)`` and
``Cast("bfloat16")``: relative to the root mean square of the gradient's elements. Half of them stay within 0.006,
nine of ten within 0.026."""

LOSSY = {"quantize": ts.Quantize(8), "cast": ts.Cast("bfloat16")}

LARGEST = 20_000  # elements of a saved tensor above which it teaches nothing more
FLAT = 1e-3  # a gradient that is so many times smaller than what came in is flat there: what it reads does not matter
SATURATED = 0.1
"""Errors are relative to the gradient, or to this share of what came in, where an operation lets less through."""

TAMED = {"nn.functional.scaled_dot_product_attention": 0.2, "nn.functional.multi_head_attention_forward": 0.2}
"""Factors for the samples of operations whose products of inputs are logits, which are of the order of one."""

BACKEND = TorchBackend()


class Saved:
    """A handle: the tensor, and what is given to who asks for it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = self.given = tensor


# -- Values of the inputs: as PyTorch has them, near zero, with ties, at the places where operations change --


def near_zero(tensor: Tensor, random: torch.Generator) -> Tensor:
    # Many of them: the smallest of a group comes back exactly.
    powers = torch.rand(tensor.shape, generator=random)
    crowded = 0.8 + 0.2 * torch.rand(tensor.shape, generator=random)
    return tensor * 10 ** (-4 * torch.where(torch.rand(tensor.shape, generator=random) < 0.25, crowded, powers))


def with_ties(tensor: Tensor, random: torch.Generator) -> Tensor:
    step = 0.7 if tensor.abs().max() > 2 else 0.13  # multiples of neither are exact in bfloat16
    return torch.round(tensor / step) * step


def at_bounds(tensor: Tensor, random: torch.Generator) -> Tensor:
    bounds = torch.tensor([-3.0, -1, -0.5, 0.5, 1, 3, 6])
    bounds = bounds[(bounds > tensor.min()) & (bounds < tensor.max())]
    if not len(bounds):
        return tensor.clone()
    chosen = bounds[torch.randint(len(bounds), tensor.shape, generator=random)]
    close = chosen * (1 + 4e-3 * (torch.rand(tensor.shape, generator=random) - 0.5))
    return torch.where(torch.rand(tensor.shape, generator=random) < 0.25, close, tensor)


VALUES = {"plain": lambda tensor, _: tensor.clone(), "near zero": near_zero, "ties": with_ties, "bounds": at_bounds}


# -- Programs: an operation and its arguments --


@dataclass(frozen=True)
class Program:
    """A differentiable function of the tensors in ``arguments`` that require grad; if ``twice``, it is derived twice.

    One that was ``chosen`` is hard, and not to be averaged with others.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    twice: bool = False
    chosen: bool = False


def attention(x: Tensor, **keywords: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x.roll(1, -1), x.roll(2, -1), **keywords)


IMAGE, SEQUENCE = {"shape": (2, 3, 8, 8)}, {"shape": (5, 4, 6)}

CHOSEN: list[tuple[dict[str, Any], str]] = [
    ({}, "x.pow(1); x.pow(2); x.pow(3)"),
    ({"positive": True}, "x.pow(0.25); x.pow(0.5); x.pow(0.75); x.pow(0); x.pow(-0.5); x.pow(-1); x.pow(-2)"),
    ({"positive": True}, "x.pow(1.5); x.pow(2.5); torch.rsqrt(x); torch.sqrt(x); torch.log(x); torch.xlogy(2.0, x)"),
    ({"positive": True}, "torch.polygamma(1, x); torch.special.zeta(3.0, x); torch._standard_gamma(x)"),
    ({"positive": True}, "torch.igamma(torch.tensor(2.0), x); torch.igammac(torch.tensor(2.0), x)"),
    ({}, "x.amax(1); x.amin(1); torch.max(x); torch.min(x); torch.median(x); torch.aminmax(x, dim=1)"),
    ({}, "torch.maximum(x, x.flip(0)); x * x.flip(0); x / x.flip(0); x @ x.T; 1 / x; 2**x; x.std(1); x.prod(1)"),
    ({"shape": (3, 4, 9)}, "x @ x.mT"),
    ({}, "F.gelu(x); F.silu(x); torch.sigmoid(x); torch.tanh(x); F.relu(x); F.relu6(x); F.hardtanh(x); F.hardswish(x)"),
    ({"scale": 1}, "x.softmax(1); x.log_softmax(1)"),
    ({}, "torch.nn.LayerNorm(20)(x); F.rms_norm(x, (20,)); aten._fused_rms_norm(x, [20], torch.ones(20), 1e-5)[0]"),
    ({"shape": (2, 6, 5, 5)}, "torch.nn.GroupNorm(2, 6)(x)"),
    ({"shape": (4, 3, 5, 5)}, "torch.nn.BatchNorm2d(3)(x)"),
    ({}, "x.clamp(0, 1); x.clamp(min=0); x.clamp(max=1); torch.clamp_min(x, 0); torch.clamp_max(x, 0.5)"),
    ({}, "F.relu(x * 1, inplace=True); F.elu(x * 1, inplace=True); F.leaky_relu(x * 1, inplace=True); F.rrelu(x)"),
    ({}, "F.hardsigmoid(x); F.threshold(x, 1, 0); F.threshold(x, 0, 0); F.threshold(x * 1, 0.5, 0.25, inplace=True)"),
    ({}, "F.hardshrink(x); F.softshrink(x); F.prelu(x, torch.tensor([0.25])); F.dropout(x, 0.3); torch.xlogy(x, 2.0)"),
    ({}, "F.l1_loss(x, zeros); F.smooth_l1_loss(x, zeros); F.huber_loss(x, zeros); torch.special.xlog1py(x, 2.0)"),
    ({}, "F.margin_ranking_loss(x[0], x[1], torch.ones(20)); F.cross_entropy(x, torch.arange(6))"),
    ({}, "torch.polar(x.abs(), x); F.leaky_relu(x)"),
    ({}, "zeros[:1].scatter_reduce(0, torch.zeros(1, 20, dtype=torch.long), x[:1], 'amax')"),
    *(({}, f"aten.norm.ScalarOpt_dim(x, {p}, [1])") for p in (1, 2, 3, inf)),
    *(({}, f"aten.norm.Scalar(x, {p})") for p in (1, 2, inf)),
    *(({}, f"aten.norm.ScalarOpt_dtype(x, {p}, dtype=x.dtype)") for p in (2, inf)),
    *(({}, f"aten.norm.ScalarOpt_dim_dtype(x, {p}, [1], False, dtype=x.dtype)") for p in (2, inf)),
    *(({}, f"torch.linalg.vector_norm(x, {p}, 1)") for p in (0, 0.5, 1, 2, 3, inf, -inf)),
    *(({}, f"torch.cdist(x, x.flip(0) + 1, p={p}); F.pdist(x, p={p})") for p in (1.0, 3.0, inf)),
    ({}, "F.normalize(x, dim=1); torch.cdist(x, x.flip(0) + 1); torch._euclidean_dist(x, x.flip(0) + 1)"),
    ({}, "torch._weight_norm(x, x.norm(dim=1, keepdim=True).detach().requires_grad_(), 0); torch.nn.Linear(20, 5)(x)"),
    (SEQUENCE, "torch.nn.LSTM(6, 8)(x); torch.nn.GRU(6, 8)(x); torch.nn.RNN(6, 8)(x)"),
    ({"shape": (4, 6)}, "torch.nn.LSTMCell(6, 8)(x); torch.nn.GRUCell(6, 8)(x)"),
    ({"shape": (2, 3, 7, 8), "scale": 1}, "attention(x); attention(x, is_causal=True)"),
    (IMAGE, "torch.nn.BatchNorm2d(3).eval()(x); torch.nn.Conv2d(3, 4, 3)(x); torch.nn.Conv2d(3, 3, 3, groups=3)(x)"),
    (IMAGE, "torch.nn.ConvTranspose2d(3, 4, 3)(x); F.max_pool2d(x, 2); F.lp_pool2d(x.abs() + 0.1, 2.0, 2)"),
    (IMAGE, "F.nll_loss(x, torch.ones(2, 8, 8, dtype=torch.long))"),
    ({"shape": (1, 3, 4, 4, 4)}, "F.max_pool3d(x, 2)"),
    ({}, "F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), x, mode='max')"),
]
"""Operations that the database lacks, or has with other settings than these, as text by how their input is made."""


def chosen() -> Iterator[Program]:
    """Yield the programs of the table above."""
    known = {"torch": torch, "F": F, "aten": torch.ops.aten, "inf": inf, "attention": attention}
    known["zeros"] = torch.zeros(6, 20)
    for options, texts in CHOSEN:
        for text in texts.split("; "):
            random = torch.Generator().manual_seed(len(text))
            values = torch.randn(options.get("shape", (6, 20)), generator=random) * options.get("scale", 3)
            values = values.abs() + 0.01 if "positive" in options else values
            yield Program(text, eval(f"lambda x: {text}", known), (values.requires_grad_(),), chosen=True)


def database(samples: int, step: int) -> Iterator[Program]:
    """Yield PyTorch's own samples of every ``step``-th operation that has gradients in ``float32``."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db[::step]:
        if not operator.supports_autograd or torch.float32 not in operator.supported_backward_dtypes("cpu"):
            continue
        if operator.name == "nn.functional.rrelu":  # saves its noise before it is filled
            continue
        # The large ones of this are thousands of times larger than those of others.
        most = 1 if operator.name == "grid_sampler_3d" else samples
        for number, sample in enumerate(islice(samples_of(operator, "cpu", torch.float32), most)):
            twice = operator.supports_gradgrad and number == 0
            tame = partial(_scaled, factor=TAMED.get(operator.name, 1.0))
            arguments, keywords = tree_map(tame, ((sample.input, *sample.args), sample.kwargs))
            yield Program(operator.name, operator, arguments, keywords, twice)


def _scaled(leaf: Any, factor: float) -> Any:
    if factor == 1 or not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return leaf
    return (leaf.detach() * factor).requires_grad_()


# -- What a reader makes of a lossy tensor --


@dataclass
class Search:
    """The errors of readers' gradients.

    Args:
        seen: by reader, key in ``LOSSY``, key in ``VALUES``, and the program if that was chosen to be hard. What the
            database has is averaged, as many of its samples are of a few elements. Each error is relative, infinite
            where a number became none, and comes with the elements of the saved tensor.
        skipped: what was not compared, and why.
    """

    seen: dict[tuple[str, str, str, str], list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    skipped: list[str] = field(default_factory=list)

    def worst(self) -> dict[str, dict[str, float]]:
        """Return for each reader the largest error by codec: the root mean square over the elements read."""
        worst: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(LOSSY, 0.0))
        for (reader, codec, _, _), group in sorted(self.seen.items()):
            weight = sum(numel for _, numel in group)
            pooled = sqrt(sum(numel * min(error, 1) ** 2 for error, numel in group) / weight)
            pooled = inf if any(error == inf for error, _ in group) else pooled
            worst[reader][codec] = max(worst[reader][codec], pooled)
        return worst


def needs(errors: dict[str, float], bound: float = BOUND) -> Demand:
    """Return what a reader with these errors by codec needs."""
    return "exact" if errors["cast"] > bound else "relative" if errors["quantize"] > bound else "any"


def brought_back(tensor: Tensor, policy: HookPolicy) -> Tensor | None:
    """Return a tensor as the policy's codecs bring it back, or None if they leave it alone."""
    if BACKEND.keep_reason(tensor) is not None:
        return None
    spec = BACKEND.spec(tensor)
    dense = spec.dense()
    data = BACKEND.to_host(tensor, spec).copy().reshape(dense.shape)
    for codec in policy.plan(spec).codecs:
        data = codec.decode(codec.encode(data, dense), dense)
    back = BACKEND.from_host(borrowed(data.reshape(dense.shape)), spec)
    return None if torch.equal(back, tensor) else back


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def observe(program: Program, values: str, seed: int, into: Search) -> None:
    """Run a program, and each of its readers once with every lossy tensor that it may get."""
    random = torch.Generator().manual_seed(seed)

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_nested:
            return leaf.detach().requires_grad_(leaf.requires_grad)
        value = leaf.detach().clone()
        if leaf.requires_grad and leaf.dtype == torch.float32 and leaf.numel():
            value = VALUES[values](value, random)
        return value.requires_grad_(leaf.requires_grad)

    reseed(seed)
    leaves = tree_map(changed, (program.arguments, program.keywords))
    wanted = [leaf for leaf in tensors(leaves) if leaf.requires_grad]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: Saved(tensor.detach().clone()), lambda saved: saved.given.clone()
    ):
        arguments, keywords = tree_map(lambda x: x * 1 if isinstance(x, Tensor) and x.requires_grad else x, leaves)
        outputs = [out for out in tensors(program.call(*arguments, **keywords)) if _is_dense(out) and out.requires_grad]
        ends = list(outputs)
        if program.twice and wanted:
            seeds = [_noise(out, random).requires_grad_() for out in outputs]
            again = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True, create_graph=True)
            ends += [grad for grad in again if grad is not None and grad.requires_grad and _is_dense(grad)]
    nodes = _nodes(ends)
    incoming: dict[Any, tuple[Tensor | None, ...]] = {}
    hooks = [node.register_hook(lambda _, grads, node=node: incoming.__setitem__(node, grads)) for node in nodes]
    torch.autograd.grad(ends, wanted, [torch.ones_like(out) for out in ends], allow_unused=True, retain_graph=True)
    for hook in hooks:
        hook.remove()
    for node in nodes:
        saves = [
            (saved, reader)
            for saved, reader in shown(node, lambda handle: isinstance(handle, Saved))
            if saved.tensor.dtype == torch.float32 and _is_dense(saved.tensor) and 0 < saved.tensor.numel() < LARGEST
        ]
        if saves and node in incoming:
            tags = program.name if program.chosen else "", values
            _read(node, saves, incoming[node], random, tags, into)


def _is_dense(out: Tensor) -> bool:
    return out.layout == torch.strided and not out.is_nested and (out.is_floating_point() or out.is_complex())


def _noise(like: Tensor, random: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, generator=random)


def _nodes(ends: list[Tensor]) -> list[Any]:
    """Return every node of the graph."""
    seen: dict[Any, None] = {}
    waiting: list[Any] = [out.grad_fn for out in ends]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(seen)


def _read(
    node: Any, saves: list[tuple[Any, str]], shapes: tuple[Tensor | None, ...], random: Any, tags: Any, into: Search
) -> None:
    program, values = tags
    # Noise, as the gradients of a program may cancel just here. Some operations take no others than their own.
    incoming = [None if grad is None else _noise(grad, random) for grad in shapes]
    try:
        plain = _gradients(node, incoming)
    except RuntimeError:
        incoming = list(shapes)
        plain = _gradients(node, incoming)
    if (again := _difference(plain, _gradients(node, incoming), incoming)) != 0:
        if again is not None:
            into.skipped.append(f"{program}: {type(node).__name__} gives other gradients each time")
        return
    for saved, reader in saves:
        for codec, policy in LOSSY.items():
            if (back := brought_back(saved.tensor, policy)) is None:
                continue
            saved.given = back
            try:
                error = _difference(plain, _gradients(node, incoming), incoming)
            except RuntimeError as failure:
                into.skipped.append(f"{program}: {reader} raises: {failure}")
                error = inf
            finally:
                saved.given = saved.tensor
            if error is not None:
                into.seen[reader, codec, values, program].append((error, saved.tensor.numel()))


def _gradients(node: Any, incoming: list[Tensor | None]) -> tuple[Any, ...]:
    reseed(0)
    made = node(*(None if grad is None else grad.clone() for grad in incoming))
    return made if isinstance(made, tuple) else (made,)


def _difference(plain: tuple[Any, ...], lossy: tuple[Any, ...], incoming: list[Tensor | None]) -> float | None:
    """Return the largest relative error of a gradient, or None where all are flat."""
    size = sqrt(sum(_norm(grad) ** 2 for grad in incoming if grad is not None))
    worst = None
    for one, other in zip(plain, lossy, strict=True):
        if one is None or other is None or not _is_dense(one):
            continue
        finite = one.isfinite()
        if not other[finite].isfinite().all():
            return inf
        if (scale := _norm(one[finite])) >= FLAT * size and scale:
            error = _norm((one - other)[finite]) / max(scale, SATURATED * size)
            worst = max(worst or 0.0, error)
    return worst


def _norm(tensor: Tensor) -> float:
    return float(tensor.detach().abs().double().norm())


def search(samples: int, step: int = 1) -> Search:
    """Run every program with every kind of values; ``samples`` and ``step`` are of :func:`database`."""
    into = Search()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples of deprecated and prototype operators
        for program in (*chosen(), *database(samples, step)):
            for seed, values in enumerate(VALUES):
                try:
                    observe(program, values, seed, into)
                except (RuntimeError, NotImplementedError, TypeError) as failure:  # not for these values
                    into.skipped.append(f"{program.name}, {values}: {type(failure).__name__}: {str(failure)[:90]}")
    return into


def table(found: Search) -> str:
    """Return a line for each reader, the most demanding first."""
    worst = found.worst()
    order = sorted(worst, key=lambda reader: (-worst[reader]["cast"], -worst[reader]["quantize"], reader))
    return "\n".join(f"{reader:50} {needs(worst[reader]):8} {worst[reader]}" for reader in order)


def disagreements(found: Search, margin: float, wanted: Callable[[str], Demand] = demand) -> list[str]:
    """Return where the list says less than was measured, by errors that are ``margin`` times beyond the bound."""
    order = ("any", "relative", "exact")
    return [
        f"{reader}: listed as {wanted(reader)}, measured {errors}"
        for reader, errors in found.worst().items()
        if order.index(needs(errors, margin * BOUND)) > order.index(wanted(reader))
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    everything = search(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
    print(table(everything))
    print(f"{sum(map(len, everything.seen.values()))} observations, {len(everything.worst())} readers")
    print("\n".join(everything.skipped))
    sys.exit("\n".join(disagreements(everything, 1)) or 0)
