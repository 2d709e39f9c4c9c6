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
from tensorstash.backends.torch.readers import Demand, demand
from tensorstash.backends.torch.readers import _shown as shown
from tensorstash.host.arrays import borrowed
from tensorstash.policies.plan import HookPolicy

BOUND = 0.1
"""The bound of gradients of an operation whose readers take any tensor, under ``Quantize(8)`` and
``Cast("bfloat16")``: relative to the root mean square of the gradient's elements. Half of them stay within 0.006,
nine of ten within 0.026."""

LOSSY = {"quantize": ts.Quantize(8), "cast": ts.Cast("bfloat16")}

LARGEST = 20_000
"""Elements of a saved tensor above which it teaches nothing more."""

FLAT = 1e-3
"""A gradient that is so many times smaller than what came in is flat there: what it reads does not matter."""

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


def as_they_are(tensor: Tensor, random: torch.Generator) -> Tensor:
    return tensor.clone()


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


VALUES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "plain": as_they_are,
    "near zero": near_zero,
    "ties": with_ties,
    "bounds": at_bounds,
}


# -- Programs: an operation and its arguments --


@dataclass(frozen=True)
class Program:
    """A differentiable function of the tensors in ``arguments`` that require grad.

    Args:
        name: for the table.
        call: the function.
        arguments: of the function.
        keywords: of the function.
        twice: whether second derivatives are run too.
        chosen: whether it was written to be hard, and is not to be averaged with others.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    twice: bool = False
    chosen: bool = False


def unary(
    name: str,
    call: Callable[[Tensor], Any],
    *,
    positive: bool = False,
    shape: tuple[int, ...] = (6, 20),
    scale: float = 3,
) -> Program:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(name))) * scale
    values = (values.abs() + 0.01 if positive else values).requires_grad_()
    return Program(name, call, (values,), chosen=True)


def attention(x: Tensor, **keywords: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x.roll(1, -1), x.roll(2, -1), **keywords)


def not_in_the_database() -> list[Program]:
    """Operations that the database lacks, or has with other settings than these."""
    reseed(0)
    aten = torch.ops.aten
    image, sequence = (2, 3, 8, 8), (5, 4, 6)
    lstm, gru, rnn = torch.nn.LSTM(6, 8), torch.nn.GRU(6, 8), torch.nn.RNN(6, 8)
    cells = torch.nn.LSTMCell(6, 8), torch.nn.GRUCell(6, 8)
    normed = torch.nn.BatchNorm2d(3).eval()
    made = [
        *(
            unary(f"pow({power})", lambda x, p=power: x.pow(p), positive=True)
            for power in (0.25, 0.5, 0.75, 0, -0.5, -1, -2)
        ),
        *(unary(f"pow({power})", lambda x, p=power: x.pow(p), positive=power % 1 > 0) for power in (1, 1.5, 2, 2.5, 3)),
        unary("amax", lambda x: x.amax(1)),
        unary("amin", lambda x: x.amin(1)),
        unary("max", torch.max),
        unary("min", torch.min),
        unary("median", torch.median),
        unary("aminmax", lambda x: torch.aminmax(x, dim=1)),
        unary("maximum", lambda x: torch.maximum(x, x.flip(0))),
        unary("x * y", lambda x: x * x.flip(0)),
        unary("x / y", lambda x: x / x.flip(0)),
        unary("mm", lambda x: x @ x.T),
        unary("bmm", lambda x: x @ x.mT, shape=(3, 4, 9)),
        unary("gelu", F.gelu),
        unary("silu", F.silu),
        unary("softmax", lambda x: x.softmax(1), scale=1),
        unary("log_softmax", lambda x: x.log_softmax(1), scale=1),
        unary("layer_norm", torch.nn.LayerNorm(20)),
        unary("group_norm", torch.nn.GroupNorm(2, 6), shape=(2, 6, 5, 5)),
        unary("batch_norm", torch.nn.BatchNorm2d(3), shape=(4, 3, 5, 5)),
        unary("sigmoid", torch.sigmoid),
        unary("tanh", torch.tanh),
        unary("rsqrt", torch.rsqrt, positive=True),
        unary("sqrt", torch.sqrt, positive=True),
        unary("log", torch.log, positive=True),
        unary("1 / x", lambda x: 1 / x),
        unary("2 ** x", lambda x: 2**x),
        unary("clamp(0, 1)", lambda x: x.clamp(0, 1)),
        unary("clamp(min=0)", lambda x: x.clamp(min=0)),
        unary("clamp(max=1)", lambda x: x.clamp(max=1)),
        unary("relu", F.relu),
        unary("relu_", lambda x: F.relu(x * 1, inplace=True)),
        unary("elu_", lambda x: F.elu(x * 1, inplace=True)),
        unary("leaky_relu_", lambda x: F.leaky_relu(x * 1, inplace=True)),
        unary("rrelu, eval", F.rrelu),
        unary("relu6", F.relu6),
        unary("hardtanh", F.hardtanh),
        unary("hardswish", F.hardswish),
        unary("hardsigmoid", F.hardsigmoid),
        unary("clamp_min", lambda x: torch.clamp_min(x, 0)),
        unary("clamp_max", lambda x: torch.clamp_max(x, 0.5)),
        unary("threshold", lambda x: F.threshold(x, 1, 0)),
        unary("threshold at 0", lambda x: F.threshold(x, 0, 0)),
        unary("l1_loss", lambda x: F.l1_loss(x, torch.zeros_like(x))),
        unary("margin_ranking_loss", lambda x: F.margin_ranking_loss(x[0], x[1], torch.ones(20))),
        unary("threshold_", lambda x: F.threshold(x * 1, 0.5, 0.25, inplace=True)),
        unary("hardshrink", F.hardshrink),
        unary("softshrink", F.softshrink),
        unary("prelu", lambda x: F.prelu(x, torch.tensor([0.25]))),
        unary("smooth_l1", lambda x: F.smooth_l1_loss(x, torch.zeros_like(x))),
        unary("huber", lambda x: F.huber_loss(x, torch.zeros_like(x))),
        unary("xlogy(x, 2)", lambda x: torch.xlogy(x, 2.0)),
        unary("xlogy(2, x)", lambda x: torch.xlogy(2.0, x), positive=True),
        unary("polygamma(1)", lambda x: torch.polygamma(1, x), positive=True),
        unary("dropout", lambda x: F.dropout(x, 0.3)),
        *(unary(f"norm({p})", lambda x, p=p: aten.norm.ScalarOpt_dim(x, p, [1])) for p in (1, 2, 3, inf)),
        *(unary(f"whole norm({p})", lambda x, p=p: aten.norm.Scalar(x, p)) for p in (1, 2, inf)),
        *(unary(f"norm({p}, dtype)", lambda x, p=p: aten.norm.ScalarOpt_dtype(x, p, dtype=x.dtype)) for p in (2, inf)),
        *(
            unary(
                f"norm({p}, dim, dtype)", lambda x, p=p: aten.norm.ScalarOpt_dim_dtype(x, p, [1], False, dtype=x.dtype)
            )
            for p in (2, inf)
        ),
        *(
            unary(f"vector_norm({p})", lambda x, p=p: torch.linalg.vector_norm(x, p, 1))
            for p in (0, 0.5, 1, 2, 3, inf, -inf)
        ),
        unary("normalize", lambda x: F.normalize(x, dim=1)),
        unary("cdist", lambda x: torch.cdist(x, x.flip(0) + 1)),
        unary("euclidean cdist", lambda x: torch._euclidean_dist(x, x.flip(0) + 1)),
        *(unary(f"cdist({p})", lambda x, p=p: torch.cdist(x, x.flip(0) + 1, p=p)) for p in (1.0, 3.0, inf)),
        *(unary(f"pdist({p})", lambda x, p=p: F.pdist(x, p=p)) for p in (1.0, 3.0, inf)),
        unary("rms_norm", lambda x: F.rms_norm(x, (20,))),
        unary("fused rms_norm", lambda x: aten._fused_rms_norm(x, [20], torch.ones(20), 1e-5)[0]),
        unary("weight_norm", lambda x: torch._weight_norm(x, x.norm(dim=1, keepdim=True).detach().requires_grad_(), 0)),
        unary("lstm", lambda x: lstm(x), shape=sequence),
        unary("gru", lambda x: gru(x), shape=sequence),
        unary("rnn", lambda x: rnn(x), shape=sequence),
        unary("lstm cell", lambda x: cells[0](x), shape=(4, 6)),
        unary("gru cell", lambda x: cells[1](x), shape=(4, 6)),
        unary("attention", attention, shape=(2, 3, 7, 8), scale=1),
        unary("causal attention", partial(attention, is_causal=True), shape=(2, 3, 7, 8), scale=1),
        unary("batch_norm, eval", lambda x: normed(x), shape=image),
        unary("conv2d", torch.nn.Conv2d(3, 4, 3), shape=image),
        unary("depthwise", torch.nn.Conv2d(3, 3, 3, groups=3), shape=image),
        unary("transposed", torch.nn.ConvTranspose2d(3, 4, 3), shape=image),
        unary("max_pool2d", lambda x: F.max_pool2d(x, 2), shape=image),
        unary("max_pool3d", lambda x: F.max_pool3d(x, 2), shape=(1, 3, 4, 4, 4)),
        unary("lp_pool2d", lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 2), shape=image),
        unary("linear", torch.nn.Linear(20, 5)),
        unary("std", lambda x: x.std(1)),
        unary("cross_entropy", lambda x: F.cross_entropy(x, torch.arange(6))),
        unary("nll_loss2d", lambda x: F.nll_loss(x, torch.ones(2, 8, 8, dtype=torch.long)), shape=image),
        unary("prod", lambda x: x.prod(1)),
        unary("polar", lambda x: torch.polar(x.abs(), x)),
        unary("special.xlog1py", lambda x: torch.special.xlog1py(x, 2.0)),
        unary("special.zeta", lambda x: torch.special.zeta(3.0, x), positive=True),
        unary("standard_gamma", torch._standard_gamma, positive=True),
        unary("igamma", lambda x: torch.igamma(torch.tensor(2.0), x), positive=True),
        unary("igammac", lambda x: torch.igammac(torch.tensor(2.0), x), positive=True),
        unary("embedding_bag(max)", lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), x, mode="max")),
    ]
    return made


def database(samples: int, step: int) -> Iterator[Program]:
    """Yield PyTorch's own samples of operations that have gradients in ``float32``.

    Args:
        samples: at most so many of each.
        step: 1 for all operations, 2 for every other, and so on.
    """
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

    def errors(self) -> dict[str, dict[tuple[str, str], float]]:
        """Return for each reader the error by codec and values: the root mean square over the elements read."""
        errors: dict[str, dict[tuple[str, str], float]] = {}
        for (reader, codec, values, _), group in sorted(self.seen.items()):
            weight = sum(numel for _, numel in group)
            pooled = sqrt(sum(numel * min(error, 1) ** 2 for error, numel in group) / weight)
            pooled = inf if any(error == inf for error, _ in group) else pooled
            found = errors.setdefault(reader, {})
            found[codec, values] = max(found.get((codec, values), 0.0), pooled)
        return errors

    def worst(self) -> dict[str, dict[str, float]]:
        """Return for each reader the largest error by codec."""
        return {
            reader: {codec: max((e for (c, _), e in errors.items() if c == codec), default=0.0) for codec in LOSSY}
            for reader, errors in self.errors().items()
        }


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
            _read(node, saves, incoming[node], random, program.name if program.chosen else "", values, into)


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
    node: Any,
    saves: list[tuple[Any, str]],
    shapes: tuple[Tensor | None, ...],
    random: torch.Generator,
    program: str,
    values: str,
    into: Search,
) -> None:
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
            back = brought_back(saved.tensor, policy)
            if back is None:
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
    """Run every program with every kind of values.

    Args:
        samples: of each operation in PyTorch's database.
        step: 1 for all operations of the database, 2 for every other, and so on.
    """
    into = Search()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples of deprecated and prototype operators
        for program in (*not_in_the_database(), *database(samples, step)):
            for seed, values in enumerate(VALUES):
                try:
                    observe(program, values, seed, into)
                except (RuntimeError, NotImplementedError, TypeError) as failure:  # not for these values
                    into.skipped.append(f"{program.name}, {values}: {type(failure).__name__}: {str(failure)[:90]}")
    return into


def table(found: Search) -> str:
    """Return a line for each reader, the most demanding first."""
    columns = [(codec, values) for codec in LOSSY for values in VALUES]
    errors, worst = found.errors(), found.worst()
    lines = [f"{'reader':50} {'needs':8} " + " ".join(f"{codec[:1]}:{values:>9}" for codec, values in columns)]
    for reader in sorted(errors, key=lambda reader: (-worst[reader]["cast"], -worst[reader]["quantize"], reader)):
        cells = (f"{errors[reader][column]:11.2g}" if column in errors[reader] else f"{'-':>11}" for column in columns)
        lines.append(f"{reader:50} {needs(worst[reader]):8} " + " ".join(cells))
    return "\n".join(lines)


def disagreements(found: Search, margin: float, wanted: Callable[[str], Demand] = demand) -> list[str]:
    """Return where the list says less than was measured.

    Args:
        found: what was measured.
        margin: how many times beyond the bound an error has to be: 1 for the whole search.
        wanted: the list.
    """
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
