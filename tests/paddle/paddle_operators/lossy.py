"""What becomes of an operator's gradient if one of the tensors it saved comes back inexactly."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import tensorstash as ts
from tensorstash.backends.paddle.backend import PaddleBackend
from tensorstash.backends.paddle.operators.readers import reader
from tensorstash.policies import Cast, Quantize
from tensorstash.protocols import Demand

from .cases import Case, run
from .exclusions import exclusions
from .jobs import said
from .rows import Input, Values
from .table import ROWS

LOSSY = {"quantize": Quantize(8), "cast": Cast("bfloat16")}
"""What is lost: an error in proportion to the largest elements around, and one in proportion to each element."""

NORMS = ("BatchNormGradNode", "InstanceNormGradNode", "LayerNormGradNode")
"""What saves small statistics beside its input, which it saves first."""

SEEDS = 4
"""How often values are drawn; once where there are many of them."""

ATTRIBUTES = {"shape", "shape_or_dtype", "num_or_sections"}
"""What says how large an input is."""

GROUP = Quantize(8).group_size

FEW = 0.25
"""Which part of the values is near an edge, where that is tried."""

MOST = 12
"""Rows that save more tensors are many operators, and say little of each."""

FAR = 0.1
"""Above which relative error of a gradient it counts as destroyed; what is lost is about a 250th."""


def _plain(one: Input, random: np.random.RandomState, dtype: str) -> Values:
    return one.values(random, dtype)


def _at_edges(one: Input, random: np.random.RandomState, dtype: str) -> Values:
    """A few of the values at all distances from where the operator's domain ends."""
    drawn = one.values(random, dtype)
    if not _is_free(one):
        return drawn
    low, high = one.edges or (one.low, one.high)
    distance = 10 ** random.uniform(-6, -1, drawn.shape) * (high - low)
    near = np.where(random.rand(*drawn.shape) < 0.5, low + distance, high - distance)
    return np.where(random.rand(*drawn.shape) < FEW, near, drawn).astype(dtype)


def _scaled(axes: slice) -> Callable[[Input, np.random.RandomState, str], Values]:
    """Values of very different magnitude along some axes, as of tokens or channels.

    Only where what is of one magnitude is a group of ``Quantize`` at least: that small values beside large ones are
    lost is no matter of the operator.
    """

    def made(one: Input, random: np.random.RandomState, dtype: str) -> Values:
        drawn = one.values(random, dtype)
        low, high = one.edges or (one.low, one.high)
        scaled = range(drawn.ndim)[axes]
        if not _is_free(one) or not low <= 0 < high or not scaled or math.prod(drawn.shape[scaled.stop :]) < GROUP:
            return drawn
        sizes = [size if axis in scaled else 1 for axis, size in enumerate(drawn.shape)]
        return (drawn * 10 ** random.uniform(-2.5, 0, sizes)).astype(dtype)

    return made


def _levels(one: Input, random: np.random.RandomState, dtype: str) -> Values:
    """Values of which many are equal, as behind a ReLU or in images."""
    drawn = one.values(random, dtype)
    if not _is_free(one):
        return drawn
    low, high = one.low, one.high
    return (low + np.round((drawn - low) / (high - low) * 5) * ((high - low) / 5)).astype(dtype)


def _is_free(one: Input) -> bool:
    return one.kind in "xc" and one.made is None


DRAWN: dict[str, Callable[[Input, np.random.RandomState, str], Values]] = {
    "plain": _plain,
    "edges": _at_edges,
    "rows": _scaled(slice(0, -1)),
    "channels": _scaled(slice(1, 2)),
    "levels": _levels,
}
"""How values are drawn, since what is destroyed by a small error depends on where the values are."""


def grown(case: Case) -> Case:
    """The same with more elements where that is easy: so one comparison that comes out otherwise is one of many."""
    row = ROWS[case.row]
    is_easy = all(one.shape == (3, 4) and not one.made for one in row.flat()) and not ATTRIBUTES & row.attributes.keys()
    return replace(case, layout="large") if is_easy else case


def lossy(case: Case) -> dict[str, Any]:
    """The relative error of the gradients for each saved tensor, way of drawing values, and loss."""
    found: dict[str, Any] = {"errors": [], "readers": []}
    for drawn, made in DRAWN.items():
        for seed in range(1 if case.layout == "large" else SEEDS):
            try:
                with np.errstate(all="ignore"):
                    _measure(case, drawn, seed, made, found)
            except Exception as error:
                found["excluded"] = said(error)
    return found


def under_lossy_policies(case: Case) -> dict[str, float]:
    """The relative error of the gradients under each lossy policy, with values of each kind; infinite for NaN."""
    found = dict.fromkeys(LOSSY, 0.0)
    for made in DRAWN.values():
        with np.errstate(all="ignore"):
            try:
                expected = _arrays(run(case, None, 0, made))
            except Exception:  # Paddle refuses it in this shape, or with these values
                continue
            for name, policy in LOSSY.items():
                scope = ts.stash(policy, framework="paddle", min_bytes=0)
                error = _relative(*_worst(expected, _arrays(run(case, scope, 0, made))))
                found[name] = max(found[name], error)
    return found


def _measure(case: Case, drawn: str, seed: int, made: Any, found: dict[str, Any]) -> None:
    exact = _Perturbing(None, None)
    expected = _arrays(run(case, exact.hooks(), seed, made))
    found["readers"], found["shapes"] = exact.readers, exact.shapes
    if len(exact.readers) > MOST:
        return
    for slot, name in enumerate(exact.readers):
        if not exact.is_float[slot]:
            continue
        for loss in LOSSY:
            perturbing = _Perturbing(slot, loss)
            got = _arrays(run(case, perturbing.hooks(), seed, made))
            found["errors"].append([name, slot, drawn, seed, loss, perturbing.error, *_worst(expected, got)])


def _arrays(ran: Any) -> list[Any]:
    return [np.frombuffer(one[2], np.float32).astype(np.float64) for one in ran.gradients if one and one[2]]


def _worst(expected: list[Any], got: list[Any]) -> tuple[float, float]:
    """Return the squares of the error and of the gradient, of the gradient that has come to most harm."""
    whole = sum(float(np.sum(one[np.isfinite(one)] ** 2)) for one in expected)
    pairs = []
    for one, other in zip(expected, got, strict=True):
        finite = np.isfinite(one)
        one, other = one[finite], other[finite]
        error = float(np.sum((one - other) ** 2)) if np.isfinite(other).all() else math.inf
        pairs.append((error, max(float(np.sum(one**2)), 1e-6 * whole)))
    return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0], default=(0.0, 0.0))


class _Perturbing:
    """Hooks that give all tensors back as they were, but one.

    Args:
        slot: which, in the order of saving; none if left out.
        loss: what it goes through.
    """

    def __init__(self, slot: int | None, loss: str | None) -> None:
        self._slot = slot
        self._loss = loss
        self._backend = PaddleBackend()
        self.readers: list[str] = []
        self.is_float: list[bool] = []
        self.shapes: list[tuple[int, ...]] = []
        self.error = 0.0

    def hooks(self) -> Any:
        return self._backend.hooks(self._pack, self._unpack, trusted=True)

    def _pack(self, tensor: Any) -> Any:
        self.readers.append(reader() or "")
        self.shapes.append(tuple(tensor.shape))
        if self._backend.keep_reason(tensor) in ("no real memory", "no elements", "dtype"):
            self.is_float.append(False)
            return tensor.detach()
        spec = self._backend.spec(tensor)
        self.is_float.append(spec.dtype == "float32")
        data = self._backend.to_host(tensor, spec).copy()
        if self._slot == len(self.readers) - 1 and self._loss is not None:
            data = self._lost(data, spec)
        return data, spec

    def _lost(self, data: Any, spec: Any) -> Any:
        dense = spec.dense()
        (codec,) = LOSSY[self._loss].plan(dense).codecs
        lost = codec.decode(codec.encode(data, dense), dense).reshape(data.shape)
        scale = float(np.linalg.norm(data.astype(np.float64)))
        error = float(np.linalg.norm(data.astype(np.float64) - lost))
        self.error = error / scale if scale else 0.0
        return np.ascontiguousarray(lost)

    def _unpack(self, packed: Any) -> Any:
        return self._backend.from_host(packed[0].copy(), packed[1]) if isinstance(packed, tuple) else packed


def cases_of_readers() -> list[Case]:
    """Return one case for each row that shows what one reader needs; in-place operators have the nodes of others."""
    rows = [name for name, row in ROWS.items() if not row.dtypes and row.name[-1] != "_"]
    cases = [Case(name, "contiguous", "float32") for name in rows]
    return [grown(case) for case in cases if case not in exclusions()]


class Errors:
    """Errors of gradients, gathered by the node that has read what was lost."""

    def __init__(self) -> None:
        # By node, whether it was alone, and loss; then by row, which tensor it was, and how values were drawn.
        self._errors: dict[Any, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, case: Case, outcome: dict[str, Any]) -> None:
        """Take what the job ``lossy`` has found of a case."""
        alone = len(set(outcome.get("readers", ()))) == 1
        for node, slot, drawn, _, loss, _, error, whole in outcome.get("errors", ()):
            self._errors[node, alone, loss][case.row, slot, drawn].append(_relative(error, whole))

    def worst(self, node: str, loss: str, *, input_only: bool = False) -> float:
        """The greatest relative error of a gradient, in the quadratic mean over how often values were drawn.

        Of rows where no other node has a part in it, if there are any.

        Args:
            node: which has read what was lost.
            loss: a key of :data:`LOSSY`.
            input_only: whether only what the operator saves first was lost.
        """
        known = self._errors.get((node, True, loss)) or self._errors.get((node, False, loss)) or {}
        which = [errors for (_, slot, _), errors in known.items() if not (input_only and slot)]
        return max((math.sqrt(sum(one * one for one in errors) / len(errors)) for errors in which), default=0.0)

    def needs(self) -> dict[str, Demand]:
        """What each node needs whose gradients were seen."""
        return {node: self._need(node) for node in sorted({node for node, _, _ in self._errors})}

    def input_needs(self) -> dict[str, Demand]:
        """What those norms whose gradients were seen need of their inputs, where that is less."""
        seen = {node for node, alone, _ in self._errors if alone and node in NORMS}
        return {node: self._need(node, input_only=True) for node in sorted(seen)}

    def _need(self, node: str, *, input_only: bool = False) -> Demand:
        if self.worst(node, "cast", input_only=input_only) > FAR:
            return "exact"
        return "relative" if self.worst(node, "quantize", input_only=input_only) > FAR else "any"


def _relative(error: float, whole: float) -> float:
    if whole:
        return math.sqrt(error / whole)
    return math.inf if error else 0.0
