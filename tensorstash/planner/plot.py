"""The picture of a plan: memory over one step, before and after, with the tiers coloured."""

import os
from importlib.util import find_spec
from typing import Any

from tensorstash.errors import MissingDependencyError
from tensorstash.planner.trace import Curves

_MIB = 2**20


def plot(held: Curves, budget: int, background: int, path: str | os.PathLike[str]) -> None:
    """Write a picture of the bytes held over a step.

    Args:
        held: bytes over the step.
        budget: drawn as a line.
        background: bytes below all tiers.
        path: of the file; its suffix is the format, as matplotlib knows it.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("plot: matplotlib is not installed; pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    time = [1e3 * seconds for seconds in held.seconds]
    layers = {"background": [background] * len(time), **held.tiers}
    axes.stackplot(
        time, [[nbytes / _MIB for nbytes in layer] for layer in layers.values()], labels=list(layers), step="post"
    )
    axes.step(time, [nbytes / _MIB for nbytes in held.keep], where="post", color="black", label="if all is kept")
    axes.axhline(budget / _MIB, color="red", linestyle="--", label="budget")
    axes.set(xlabel="ms of the step", ylabel="MiB held")
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path)
