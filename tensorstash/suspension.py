"""A region in which autograd keeps its tensors itself."""

from contextlib import AbstractContextManager

from tensorstash.backends import backend_loaded, backend_named


def suspended(*, framework: str | None = None) -> AbstractContextManager[None]:
    """Take all saved-tensor hooks of this thread off for a block of code, and put them back.

    Inside, autograd saves tensors as if no hooks were in force, those of the framework and of others included. Tensors
    saved before keep their hooks. A ``stash`` entered inside works as ever.

    ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian`` refuse to run where hooks are in force, and need it.

    Args:
        framework: as in :func:`~tensorstash.stash`.

    Raises:
        BackendError: no framework is imported, or several are; at its end: hooks that were entered inside are still in
            force, which are taken off.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> with ts.stash("compress", framework="reference", min_bytes=0) as session:
    ...     with ts.suspended(framework="reference"):
    ...         y = ref.ones((9,), requires_grad=True).exp()
    >>> session.stats().seen.tensors
    0
    """
    backend = backend_named(framework) if framework is not None else backend_loaded()
    return backend.suspended()
