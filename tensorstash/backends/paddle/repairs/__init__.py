"""Repairs of PaddlePaddle's faults with saved-tensor hooks in force, all of them found in 3.3.1.

=================  ==========================================================  =========  =========================
repair             fault of Paddle                                             upstream   tests in ``tests/paddle``
=================  ==========================================================  =========  =========================
``backward``       a packed value lives until the graph goes; what a hook                 ``test_paddle_lifetime``,
                   raises becomes an ``OSError``                                          ``test_paddle_errors``
``foreign_hooks``  one pair of hooks per process, which ``recompute`` needs;   PR 65619,  ``test_paddle_hooks``,
                   ``unpack`` is read with the layout that was saved; hooks    PR 69585   ``test_paddle_layout``,
                   run under the user's autocast                                          ``test_paddle_amp``
``pylayer``        ``save_for_backward`` crashes on lists, refuses numbers,               ``test_paddle_pylayer``
                   unpacks tuples by element, loses ``stop_gradient``
=================  ==========================================================  =========  =========================

Beside them, :mod:`tensorstash.backends.paddle.operations` guards operations whose backward writes into what they
saved, and :func:`tensorstash.backends.paddle.nodes.node_of` takes back what ``Tensor.grad_fn`` leaks.
"""
