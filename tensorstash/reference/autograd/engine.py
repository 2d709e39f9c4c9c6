"""Differentiation: an iterative walk over the recorded graph."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tensorstash.reference.autograd.graph import Node, no_grad, set_grad_enabled
from tensorstash.reference.creation import full
from tensorstash.reference.tensor import AccumulateGrad, Tensor

# Graphs of several threads may share leaves.
_accumulating = threading.Lock()


def backward(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None, *, retain_graph: bool = False
) -> None:
    """Accumulate gradients into the `grad` of leaves.

    Saved tensors are freed node by node as the walk passes, unless `retain_graph`.

    Args:
        outputs: tensors to differentiate.
        gradients: one per output; None means 1 for an output of one element.
        retain_graph: keep saved tensors for another backward.

    Raises:
        GraphReleasedError: saved tensors have been freed by an earlier backward.
        InplaceError: a saved tensor has been modified since.
        RuntimeError: an output does not require grad, or has several elements and no gradient.
    """
    _walk(outputs, gradients, None, retain_graph, create_graph=False)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Give the gradients of `outputs` with respect to `inputs`; no `grad` attribute changes.

    Args:
        outputs: one tensor or several.
        inputs: one tensor or several, leaves or not.
        retain_graph: keep saved tensors for another backward; by default, as `create_graph`.
        create_graph: record the gradient computation, for higher derivatives.

    Returns:
        None for an input that the outputs do not depend on.

    Raises:
        RuntimeError: as `backward`; or an input does not require grad.

    >>> from tensorstash.reference import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> (first,) = grad(x**3, x, create_graph=True)
    >>> first.item(), grad(first, x)[0].item()
    (27.0, 18.0)
    """
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    inputs = [inputs] if isinstance(inputs, Tensor) else inputs
    retain = create_graph if retain_graph is None else retain_graph
    found = _walk(outputs, None, _nodes_of(inputs), retain, create_graph)
    return tuple(g if g is None or create_graph else g.detach() for g in found)


def _walk(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None] | None,
    wanted: Sequence[Node[Tensor]] | None,
    retain_graph: bool,
    create_graph: bool,
) -> list[Tensor | None]:
    """Run the graph behind `outputs`; give the gradients at `wanted`, or accumulate into all leaves if that is None."""
    with set_grad_enabled(create_graph):
        pending: dict[int, Tensor] = {}

        def arrive(node: Node[Tensor], gradient: Tensor) -> None:
            pending[node.key] = pending[node.key] + gradient if node.key in pending else gradient

        roots = _nodes_of(outputs)
        for root, output, given in zip(roots, outputs, gradients or [None] * len(outputs), strict=True):
            arrive(root, _seed(output, given))
        plan = _order(roots)
        targets = None if wanted is None else {node.key for node in wanted}
        useful = None if targets is None else _leading_to(targets, plan)
        found: dict[int, Tensor] = {}
        plan.reverse()
        while plan:
            node = plan.pop()
            gradient = pending.pop(node.key, None)
            if gradient is not None and targets is not None and node.key in targets:
                found[node.key] = gradient
            if isinstance(node, AccumulateGrad):
                if targets is None and gradient is not None:
                    _accumulate(node.variable, gradient)
            elif useful is None or node.key in useful:
                if gradient is not None:
                    for target, its in zip(node.edges, node.apply(gradient), strict=True):
                        if target is not None and its is not None:
                            arrive(target, its)
                if not retain_graph:
                    node.release()
        return [found.get(node.key) for node in wanted or ()]


def _order(roots: Sequence[Node[Tensor]]) -> list[Node[Tensor]]:
    """Give every reachable node once, the latest recorded first, and so each after all that feed it."""
    nodes = {node.key: node for node in roots}
    stack = list(nodes.values())
    while stack:
        for before in filter(None, stack.pop().edges):
            if before.key not in nodes:
                nodes[before.key] = before
                stack.append(before)
    return sorted(nodes.values(), key=lambda node: -node.sequence)


def _leading_to(targets: set[int], plan: Sequence[Node[Tensor]]) -> set[int]:
    """Give the nodes of `plan` that must run so that gradients reach `targets`."""
    reach = set(targets)
    useful: set[int] = set()
    for node in reversed(plan):
        if any(before is not None and before.key in reach for before in node.edges):
            useful.add(node.key)
            reach.add(node.key)
    return useful


def _nodes_of(tensors: Sequence[Tensor]) -> list[Node[Tensor]]:
    nodes = []
    for index, tensor in enumerate(tensors):
        node = tensor.node
        if node is None:
            raise RuntimeError(f"element {index} of tensors does not require grad and does not have a grad_fn")
        nodes.append(node)
    return nodes


def _seed(output: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        if output.numel != 1:
            raise RuntimeError(
                f"grad can be implicitly created only for outputs of one element, got shape {output.shape}; "
                "pass a gradient"
            )
        return full(output.shape, 1, output.dtype, output.device)
    if gradient.shape != output.shape or gradient.device != output.device:
        raise RuntimeError(
            f"the gradient of an output must match it: got shape {gradient.shape} on {gradient.device}, "
            f"expected {output.shape} on {output.device}"
        )
    return gradient.astype(output.dtype)


def _accumulate(variable: Tensor, gradient: Tensor) -> None:
    with _accumulating:
        if variable.grad is None:
            variable.grad = gradient.clone().detach()
        else:
            with no_grad():
                variable.grad.add_(gradient)
