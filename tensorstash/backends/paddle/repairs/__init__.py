"""Repairs of PaddlePaddle's faults with saved-tensor hooks in force.

Every fault was found in 3.3.1, and each test fails without its repair; where no issue is named, none is known.

=================  ==========================================================  ========  =========================
repair             fault of Paddle                                             upstream  tests in ``tests/paddle``
=================  ==========================================================  ========  =========================
``backward``       a packed value lives until the graph goes; what a hook                ``test_paddle_lifetime``,
                   raises becomes an ``OSError``                                         ``test_paddle_errors``
``foreign_hooks``  one pair of hooks per process, which ``recompute`` needs;   PR 65619  ``test_paddle_hooks``,
                   ``unpack`` is read with the layout that was saved           PR 69585  ``test_paddle_layout``
``pylayer``        ``save_for_backward`` crashes on lists, refuses numbers,              ``test_paddle_pylayer``
                   unpacks tuples by element, loses ``stop_gradient``
``autocast``       hooks run under the user's autocast                                   ``test_paddle_amp``
=================  ==========================================================  ========  =========================

Beside them, :mod:`tensorstash.backends.paddle.operations` guards operations whose backward writes into what they
saved (``test_paddle_written_into``), and :func:`tensorstash.backends.paddle.nodes.node_of` takes back what
``Tensor.grad_fn`` leaks (``test_paddle_recipes``).
"""
