"""Differentiation: an iterative walk over the recorded graph."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tensorstash.reference.autograd.graph import Node, no_grad, set_grad_enabled
from tensorstash.reference.creation import full
from tensorstash.reference.tensor import AccumulateGrad, Tensor

# Graphs of several threads may share leaves.
_accumulating = threading.Lock()


def backward(output: Tensor, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
    """Accumulate gradients into the `grad` of leaves, given that of the output; by default 1, of one element.

    Saved tensors are freed node by node as the walk passes, unless `retain_graph`.
    """
    _walk(output, gradient, None, retain_graph, create_graph=False)


def grad(output: Tensor, inputs: Tensor | Sequence[Tensor], *, create_graph: bool = False) -> tuple[Tensor | None, ...]:
    """Give the gradients of an output of one element with respect to one or more `inputs`; no `grad` attribute changes.

    A gradient is None where the output does not depend on an input. `create_graph` records the computation, for higher
    derivatives, and keeps saved tensors.

    >>> from tensorstash.reference import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> (first,) = grad(x * x * x, x, create_graph=True)
    >>> first.item(), grad(first, [x])[0].item()
    (27.0, 18.0)
    """
    wanted = [inputs] if isinstance(inputs, Tensor) else inputs
    found = _walk(output, None, [_node_of(x) for x in wanted], create_graph, create_graph)
    return tuple(g if g is None or create_graph else g.detach() for g in found)


def _walk(
    output: Tensor, seed: Tensor | None, wanted: Sequence[Node] | None, retain_graph: bool, create_graph: bool
) -> list[Tensor | None]:
    """Run the graph behind `output`; give the gradients at `wanted`, or accumulate into all leaves if that is None."""
    with set_grad_enabled(create_graph):
        root = _node_of(output)
        pending = {root.key: _seed(output, seed)}
        targets = {node.key for node in wanted or ()}
        found: dict[int, Tensor] = {}
        plan = _order(root)
        while plan:
            node = plan.pop()
            gradient = pending.pop(node.key, None)
            if gradient is not None and node.key in targets:
                found[node.key] = gradient
            if isinstance(node, AccumulateGrad):
                if wanted is None and gradient is not None:
                    _accumulate(node.variable, gradient)
                continue
            if gradient is not None:
                for target, its in zip(node.edges, node.apply(gradient), strict=True):
                    if target is not None and its is not None:
                        pending[target.key] = pending[target.key] + its if target.key in pending else its
            if not retain_graph:
                node.release()
        return [found.get(node.key) for node in wanted or ()]


def _order(root: Node) -> list[Node]:
    """Give every reachable node once, the latest recorded last, and so each before all that feed it."""
    nodes = {root.key: root}
    stack = [root]
    while stack:
        for before in filter(None, stack.pop().edges):
            if before.key not in nodes:
                nodes[before.key] = before
                stack.append(before)
    return sorted(nodes.values(), key=lambda node: node.sequence)


def _node_of(tensor: Tensor) -> Node:
    node = tensor.node
    if node is None:
        raise RuntimeError("a tensor does not require grad and does not have a grad_fn")
    return node


def _seed(output: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        if output.numel != 1:
            raise RuntimeError(
                f"grad can be implicitly created only for outputs of one element, got shape {output.shape}; "
                "pass a gradient"
            )
        return full(output.shape, 1, output.dtype, output.device)
    if gradient.meta != output.meta:
        raise RuntimeError(f"the gradient of an output must match it: got {gradient.meta}, expected {output.meta}")
    return gradient


def _accumulate(variable: Tensor, gradient: Tensor) -> None:
    with _accumulating:
        if variable.grad is None:
            variable.grad = gradient.clone().detach()
        else:
            with no_grad():
                variable.grad.add_(gradient)
