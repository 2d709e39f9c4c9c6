"""The kernels of Paddle that write into what they unpack."""

WRITING_NODES: frozenset[str] = frozenset({"CrossEntropyWithSoftmaxGradNode"})
"""Their nodes, by the names that :func:`~tensorstash.backends.paddle.operators.readers.reader` gives.

The gradient of the logits is made in the memory of the saved softmax. Whatever backward gets there must be nobody
else's: not the user's tensor, not a payload that is unpacked again. The tests derive this list from the table of
operators, on whatever version of Paddle they run.
"""
