"""The table and the plot of training_quality.py."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median

import matplotlib
from learning import BASELINE, Findings, Outcome

matplotlib.use("Agg")
from matplotlib import pyplot

ALLOWED = {"quantize:bits=8": 1.0, "quantize:bits=4": 2.0}
"""Spreads that a policy's mean may be away from that of training without one."""

HEADER = (
    "| task | policy | bytes | held-out loss | deviation | accuracy, % | deviation | gradient error, median | worst "
    "| cosine, worst | bar |\n" + "|---" * 11 + "|"
)


def as_markdown(findings: Sequence[Findings], conditions: str) -> str:
    """Return the table and what its columns mean."""
    lines = [f"| {' | '.join(row)} |" for found in findings for row in _rows(found)]
    legend = (
        "Loss and accuracy are means over the seeds; ± is the spread, the largest distance of a seed from the mean.\n"
        "Deviations are distances from training without a policy, in its spreads; bars: at most 1 with 8 bits, 2 with\n"
        "4 bits. Bytes are those stored for each byte of the saved activations. Gradient errors are relative, of each\n"
        "parameter, at the weights that training without a policy ends with."
    )
    return "\n".join(["# Training quality", "", HEADER, *lines, "", legend, "", conditions, ""])


def _rows(found: Findings) -> Iterable[list[str]]:
    base = found.of(BASELINE)
    for policy in dict.fromkeys(outcome.policy for outcome in found.outcomes):
        some = found.of(policy)
        losses, hits = _losses(some), _accuracies(some)
        row = [found.title, policy, "1.000" if policy == BASELINE else f"{mean(o.payload for o in some):.3f}"]
        off = deviation(losses, _losses(base)), deviation(hits, _accuracies(base))
        row += [f"{mean(losses):.4f} ± {spread(losses):.4f}", "" if policy == BASELINE else f"{off[0]:.2f}"]
        row += [f"{100 * mean(hits):.2f} ± {100 * spread(hits):.2f}", "" if policy == BASELINE else f"{off[1]:.2f}"]
        errors = [error for error in found.gradients if error.policy == policy]
        if errors:
            row += [f"{pick(error.relative for error in errors):.1e}" for pick in (median, max)]
            row += [f"{min(error.cosine for error in errors):.4f}"]
        else:
            row += [""] * 3
        allowed = ALLOWED.get(policy)
        row.append("" if allowed is None else "met" if max(off) <= allowed else f"missed: above {allowed:g}")
        yield row


def _losses(outcomes: Iterable[Outcome]) -> list[float]:
    return [outcome.loss for outcome in outcomes]


def _accuracies(outcomes: Iterable[Outcome]) -> list[float]:
    return [outcome.accuracy for outcome in outcomes]


def spread(values: Sequence[float]) -> float:
    """Return the largest distance of a value from the mean."""
    return max(abs(value - mean(values)) for value in values)


def deviation(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the distance of the means, in spreads of ``base``."""
    distance = abs(mean(values) - mean(base))
    return distance / spread(base) if distance else 0.0


def plot(findings: Sequence[Findings], path: Path) -> None:
    """Draw held-out losses above and gradient errors below, a column for each task."""
    figure, axes = pyplot.subplots(2, len(findings), figsize=(4.4 * len(findings), 8), squeeze=False)
    for found, above, below in zip(findings, *axes, strict=True):
        _draw_losses(found, above)
        _draw_gradients(found, below)
    axes[0][0].set_ylabel("held-out loss")
    axes[1][0].set_ylabel("relative error of the gradient")
    figure.legend(*axes[1][0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_losses(found: Findings, axes: pyplot.Axes) -> None:
    base = _losses(found.of(BASELINE))
    axes.axhspan(mean(base) - spread(base), mean(base) + spread(base), color="0.88")
    axes.axhline(mean(base), color="0.5", linewidth=1)
    policies = list(dict.fromkeys(outcome.policy for outcome in found.outcomes))
    for place, policy in enumerate(policies):
        losses = _losses(found.of(policy))
        color = "0.3" if policy == BASELINE else f"C{place - 1}"
        axes.plot([place] * len(losses), losses, "o", color=color, markersize=4, alpha=0.6)
        axes.plot([place - 0.3, place + 0.3], [mean(losses)] * 2, color=color, linewidth=2)
    axes.set_xticks(range(len(policies)), map(_short, policies), rotation=60, ha="right", fontsize=8)
    axes.set_title(found.title)


def _draw_gradients(found: Findings, axes: pyplot.Axes) -> None:
    for place, policy in enumerate(dict.fromkeys(error.policy for error in found.gradients)):
        errors = [error.relative for error in found.gradients if error.policy == policy]
        axes.semilogy(errors, ".-", color=f"C{place}", linewidth=0.8, markersize=4, label=_short(policy))
    axes.set_xlabel("parameter, from input to output")


def _short(policy: str) -> str:
    return policy.replace("quantize:bits=", "").replace(",rounding=", " bits, ").replace("cast:dtype=", "") + (
        " bits" if policy.startswith("quantize") and "," not in policy else ""
    )
