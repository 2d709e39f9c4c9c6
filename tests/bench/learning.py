"""What training_quality.py trains, and what it finds out."""

from dataclasses import dataclass

LEARNT, HELD_OUT = (0.0, 0.85), (0.85, 1.0)
"""Parts of the data: what is trained on, and what is evaluated on."""

BASELINE = "none"
POLICIES = (
    "quantize:bits=8",
    "quantize:bits=4",
    "quantize:bits=4,rounding=nearest",
    "quantize:bits=2",
    "quantize:bits=2,rounding=nearest",
    "cast:dtype=bfloat16",
    "cast:dtype=float16",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one task; each network uses those that concern it.

    Args:
        batch: examples of a step.
        rate: of learning at first; it falls to 0 in a straight line, or the last batches would decide the result.
        depth: blocks.
        context: bytes of text in an example.
        width: of the GPT.
        channels: of the convolutions.
        scale: side of the square that a pixel becomes.
    """

    batch: int
    rate: float
    depth: int
    context: int = 0
    width: int = 0
    channels: int = 0
    scale: int = 0


TASKS = {
    ("torch", "gpt"): Sizes(batch=8, rate=3e-3, depth=2, context=64, width=64),
    ("paddle", "gpt"): Sizes(batch=8, rate=3e-3, depth=2, context=64, width=64),
    ("torch", "resnet"): Sizes(batch=32, rate=3e-3, depth=4, channels=8, scale=1),
    ("paddle", "resnet"): Sizes(batch=32, rate=3e-3, depth=4, channels=8, scale=1),
}
"""The trainings, by framework and network."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training.

    Args:
        policy: one line, or :data:`BASELINE`.
        seed: of the initial weights and of the order of the data.
        loss: on held-out data after the last step.
        accuracy: on held-out data after the last step.
        payload: bytes stored for each byte of the tensors that went through the policy's plan.
        share: part of the bytes of all saved tensors, parameters aside, that went through it.
    """

    policy: str
    seed: int
    loss: float
    accuracy: float
    payload: float
    share: float


@dataclass(frozen=True, slots=True)
class GradientError:
    """How far the gradient of one parameter is from the one without a policy, at the same weights and data.

    Args:
        policy: one line.
        parameter: its name; parameters come in the order of the network.
        relative: norm of the difference by the norm of the gradient.
        cosine: of the angle between the two.
    """

    policy: str
    parameter: str
    relative: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything about one task."""

    framework: str
    network: str
    outcomes: tuple[Outcome, ...]
    gradients: tuple[GradientError, ...]

    @property
    def title(self) -> str:
        return f"{self.framework} {self.network}"

    def of(self, policy: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.policy == policy]
