"""Functions of the frameworks themselves, with one meaning on all of them, and a block without any hooks."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tensorstash.api import Stash, stash
from tensorstash.backends import backend_chosen
from tensorstash.policies import CpuOffload


def save_on_cpu(pin_memory: bool = False, device_type: str = "cuda", *, framework: str | None = None) -> Stash:
    """Drop-in for ``torch.autograd.graph.save_on_cpu``, on every framework.

    Unlike PyTorch's, it keeps layouts exactly, stashes shared content once, leaves parameters alone and keeps the
    in-place check.

    Args:
        pin_memory: accepted, and no matter: host memory is page-locked in any case.
        device_type: accepted, and no matter: tensors on any accelerator are moved.
        framework: as in :func:`stash`.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> with ts.save_on_cpu(framework="reference"):
    ...     y = ref.ones((1,), device="sim:0", requires_grad=True).exp()
    """
    del pin_memory, device_type
    return stash(CpuOffload(), framework=framework, min_bytes=0)


def saved_tensors_hooks(
    pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any], *, framework: str | None = None
) -> AbstractContextManager[None]:
    """Install a pack/unpack pair of your own, with the same meaning on every framework.

    Pairs are per thread and nest: the innermost runs. The result of ``pack_hook`` is freed when backward is done.

    Args:
        pack_hook: gets a saved tensor, returns any object; must not keep the tensor itself but a detached one.
        unpack_hook: gets that object, returns a tensor of the same shape, dtype and device.
        framework: as in :func:`stash`.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> with ts.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda packed: packed, framework="reference"):
    ...     y = ref.tensor([1.0], requires_grad=True).exp()
    """
    return backend_chosen(framework).hooks(pack_hook, unpack_hook)


def suspended(*, framework: str | None = None) -> AbstractContextManager[None]:
    """Take all saved-tensor hooks of this thread off for a block of code, and put them back.

    Those of the framework and of others are off too. Tensors saved before keep their hooks, and a ``stash`` entered
    inside works as ever. ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian`` need it where hooks are in force.

    Args:
        framework: as in :func:`stash`.

    Raises:
        BackendError: no framework, or several, are imported; at its end: hooks that were entered inside are in force.

    >>> import tensorstash as ts, tensorstash.reference as ref
    >>> with ts.stash("compress", framework="reference"), ts.suspended(framework="reference"):
    ...     y = ref.ones((9,), requires_grad=True).exp()
    """
    return backend_chosen(framework).suspended()
