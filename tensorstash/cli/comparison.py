"""A training under policies beside the same without one: processes that take turns, their figures, and a verdict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tensorstash.cli.turns import Job, Turns

NO_POLICY = "none"

HALF = "budget:size={half}"
"""A budget of half of what the steps without a policy take; how much that is, only they tell."""

POLICIES = (
    "keep",
    "recompute",
    "disk_spill",
    "recompute | disk_spill",
    "compress",
    "compress | disk_spill",
    HALF,
    "quantize:bits=8",
    "quantize:bits=4",
    "quantize:bits=4 | disk_spill",
    "cast:dtype=bfloat16",
)

LEGEND = """\
Each cell: peak memory of a step above the floor (libraries, model, gradients, optimizer state) · duration of a step.
Below the first row both are relative to it; of durations, the median of the ratios between steps of the same round:
all processes live at one time, and take turns step by step. First steps do not count, nor those in which a budget
tries plans. "checkpoint per block" is what the framework offers: activations of each block are computed again."""

_SAVES = 0.95
"""Most memory, relative to no policy, of a policy that saves any."""

Measured = Mapping[str, Any]
"""What a process reports: ``activation_bytes``, the peak above its floor; ``step_s`` and ``cpu_s``, seconds and
processor seconds of each step; ``gradients``, the text of the table's cell about them."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One process.

    Args:
        policy: one line, :data:`NO_POLICY`, or :data:`HALF`.
        is_checkpointed: whether the framework computes the activations of each block again in backward.
        is_advised: whether it runs in the environment that ``python -m tensorstash`` gives a program, or in ours.
    """

    policy: str = NO_POLICY
    is_checkpointed: bool = False
    is_advised: bool = True

    def __str__(self) -> str:
        if self.is_checkpointed:
            return "checkpoint per block"
        if self.policy == HALF:
            return "budget of half the memory"
        return self.policy if self.is_advised else f"{self.policy}, allocator as it is"

    @property
    def untimed(self) -> int:
        """Steps that do not count: the first, and those in which a budget compares plans."""
        return 16 if self.policy.startswith("budget") else 1

    def line(self, half_bytes: int) -> str:
        """Return the policy as one line, or :data:`NO_POLICY`.

        Args:
            half_bytes: half of what the steps without a policy take.
        """
        return self.policy.replace("{half}", f"{max(half_bytes >> 10, 1)}KiB")


def variants(policies: Sequence[str], *, advice: Mapping[str, str]) -> list[Variant]:
    """Return what is compared: no policy first, then what users have without this package, then each policy.

    Args:
        policies: one line each.
        advice: variables in which the advised environment differs from ours.
    """
    as_it_is = [Variant(is_advised=False)] if advice else []
    return [Variant(), *as_it_is, Variant(is_checkpointed=True), *map(Variant, policies)]


def steps_of(compared: Sequence[Variant], rounds: int) -> int:
    """Return how many steps all of them make together."""
    return sum(variant.untimed + rounds for variant in compared)


def compare(
    compared: Sequence[Variant],
    job: Callable[[Variant, int], Job],
    rounds: int,
    on_turn: Callable[[Variant], object] = bool,
) -> dict[Variant, dict[str, Any]]:
    """Train each variant in a process of its own, in turns, and return what each reports.

    Args:
        compared: no policy comes first.
        job: returns the process of a variant, given half of the bytes that no policy takes. It makes ``untimed`` steps
            and one in each round, and yields its ``activation_bytes`` after each.
        rounds: steps of each that count.
        on_turn: called after each step.

    Raises:
        WorkerError: a process failed.
    """
    plain, *others = compared
    with Turns[Variant](on_turn) as turns:
        turns.start({plain: job(plain, 0)})
        half = turns.alone(plain)["activation_bytes"] // 2
        turns.start({variant: job(variant, half) for variant in others})
        for variant in others:
            turns.alone(variant, variant.untimed)
        turns.rounds(rounds)
        return turns.finish()


def ratio(measured: Mapping[Variant, Measured], ours: Variant, theirs: Variant, name: str) -> float:
    """Return the median of the ratios between steps of the same round.

    Args:
        measured: what the processes have reported.
        ours: whose steps.
        theirs: relative to whose.
        name: ``"step_s"`` or ``"cpu_s"``.
    """
    pairs = (measured[each][name][each.untimed :] for each in (ours, theirs))
    return float(median(our / their for our, their in zip(*pairs, strict=True)))


@dataclass(frozen=True, slots=True)
class Training:
    """One training under all variants.

    Args:
        title: of its column.
        measured: what the processes have reported; no policy comes first.
    """

    title: str
    measured: Mapping[Variant, Measured]

    def ratios(self, variant: Variant) -> tuple[float, float, float]:
        """Return memory, time and processor time relative to no policy."""
        plain = next(iter(self.measured))
        memory = self.measured[variant]["activation_bytes"] / max(self.measured[plain]["activation_bytes"], 1)
        return memory, *(ratio(self.measured, variant, plain, name) for name in ("step_s", "cpu_s"))

    def cells(self, variant: Variant) -> tuple[str, str]:
        """Return the cells of a variant: memory and time, and what is known of its gradients."""
        measured = self.measured[variant]
        if variant == next(iter(self.measured)):
            nbytes, step_s = measured["activation_bytes"], median(measured["step_s"][variant.untimed :])
            return f"{nbytes / 2**20:.0f} MiB · {step_s * 1e3:.0f} ms", "the reference"
        memory, time, _ = self.ratios(variant)
        return f"{memory:.2f} · {time:.2f}", measured["gradients"]

    def frontier(self) -> list[Variant]:
        """Return the variants than which no other takes less memory in less time, as the table shows them.

        A policy that saves next to nothing is none of them: its time differs from that without one by chance.
        """
        shown = {variant: tuple(round(each, 2) for each in self.ratios(variant)[:2]) for variant in self.measured}
        points = {
            variant: point
            for variant, point in shown.items()
            if point[0] < _SAVES or (variant.policy == NO_POLICY and not variant.is_checkpointed)
        }
        best = [
            variant
            for variant, (memory, time) in points.items()
            if not any(m <= memory and t <= time and (m, t) != (memory, time) for m, t in points.values())
        ]
        return sorted(best, key=lambda variant: -points[variant][0])


def heads(trainings: Sequence[Training]) -> Iterator[str]:
    """Yield the heads of the columns."""
    yield "policy"
    for training in trainings:
        yield training.title
        yield f"gradients, {training.title.rpartition(', ')[2]}"


def rows(trainings: Sequence[Training]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    for variant in trainings[0].measured:
        yield (str(variant), *(cell for training in trainings for cell in training.cells(variant)))


def verdict(trainings: Sequence[Training]) -> str:
    """Return one sentence: which policies are on the frontier of memory against time."""
    found = []
    for training in trainings:
        ratios = {variant: training.ratios(variant) for variant in training.frontier()}
        points = (f"{variant} ({memory:.2f} · {time:.2f})" for variant, (memory, time, _) in ratios.items())
        found.append(f"{training.title}: {', '.join(points)}")
    return (
        f"On the frontier of memory against time on this machine, where nothing else takes less of both: "
        f"{'; '.join(found)}."
    )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> str:
    """Return a Markdown table whose columns are aligned in the text too.

    Args:
        heads: of the columns.
        rows: cells; vertical bars in them are escaped.
        left: heads of the columns that are aligned to the left.

    >>> print(markdown(["policy", "ratio"], [["a | b", "0.5"]], left=["policy"]))
    | policy | ratio |
    |--------|------:|
    | a \\| b |   0.5 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_left = [head in left for head in heads]
    rule = [
        "-" * (width + 2) if plain else "-" * (width + 1) + ":" for width, plain in zip(widths, is_left, strict=True)
    ]
    head, *body = (_line(row, widths, is_left) for row in cells)
    return "\n".join((head, f"|{'|'.join(rule)}|", *body))


def _line(cells: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> str:
    columns = zip(cells, widths, is_left, strict=True)
    return f"| {' | '.join(f'{cell:<{width}}' if left else f'{cell:>{width}}' for cell, width, left in columns)} |"


def plot(path: str | Path, trainings: Sequence[Training]) -> None:
    """Draw memory and time of all variants as bars.

    Args:
        path: a file; its ending says which format.
        trainings: one picture each, side by side.

    Raises:
        ImportError: matplotlib is missing.
    """
    from matplotlib.figure import Figure

    count = len(trainings[0].measured)
    figure = Figure(figsize=(5 + 4 * len(trainings), 1 + 0.4 * count), layout="constrained")
    for axes, training in zip(
        figure.subplots(1, len(trainings), sharey=True, squeeze=False)[0], trainings, strict=True
    ):
        ratios = [training.ratios(variant) for variant in training.measured]
        for offset, which, name in ((-0.2, 0, "memory"), (0.2, 1, "time")):
            bars = axes.barh([y + offset for y in range(count)], [each[which] for each in ratios], 0.4, label=name)
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(0, 1.12 * max(max(each[:2]) for each in ratios))
        axes.set_title(training.title)
        axes.set_xlabel("relative to no policy; less is better")
        axes.set_yticks(range(count), list(map(str, training.measured)))
    axes.invert_yaxis()  # shared: the first row is on top in all of them
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
