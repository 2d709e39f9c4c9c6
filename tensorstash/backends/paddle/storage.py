"""Identity of the memory of saved tensors, in a framework without weak references to a storage."""

import paddle
from paddle import Tensor

from tensorstash.backends.paddle.repairs.backward import Unrecorded

_REMEMBERED = 2


def token_of(tensor: Tensor, recent: list[tuple[Tensor, object]]) -> object:
    """Return the token of the tensor's storage: a known one, or a new one.

    An address says nothing once its memory may have been freed and given out again, and Paddle has nothing that sees
    a storage die. So the two storages seen last are held, which proves that they are alive, and older ones are
    forgotten: content that is saved again later is stored again. Operations that share an input (the projections of
    an attention block), or save a buffer twice, do so in short succession.

    ``recent`` is of one scope, newest first, and is to be cleared with it.
    """
    for index, (held, token) in enumerate(recent):
        if held._is_shared_buffer_with(tensor):
            if index:
                recent.insert(0, recent.pop(index))
            return token
    token = object()
    # A view has an allocation of its own choice, whatever memory the tensor is given later.
    recent.insert(0, (same_memory(tensor), token))
    del recent[_REMEMBERED:]
    return token


def same_memory(tensor: Tensor) -> Tensor:
    """Return a view of all of a tensor, with its layout and version, that is another tensor to Paddle's C++ as well."""
    if tensor.is_contiguous():
        return tensor.detach().view(tensor.shape)
    view: Tensor = paddle.as_strided(tensor.detach(), tensor.shape, tensor.strides, tensor._offset())
    return view


def version_probe(tensor: Tensor) -> Tensor:
    """Return an empty tensor that shares the version of ``tensor``: a view that has let go of its memory."""
    with Unrecorded():
        probe = same_memory(tensor)
    probe._clear_data()
    return probe
