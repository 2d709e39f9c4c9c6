"""Spill the activations of a Paddle vision model to disk: the gradients are the same."""

import numpy as np
import paddle
from paddle.nn import functional as F  # noqa: N812 - the name everybody gives it
from paddle.vision.models import resnet18

import tensorstash as ts


def gradients(model: paddle.nn.Layer, images: paddle.Tensor, labels: paddle.Tensor) -> list[np.ndarray]:
    """Run one training step and return all gradients."""
    model.clear_gradients()
    F.cross_entropy(model(images), labels).backward()
    return [parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None]


def main() -> None:
    paddle.seed(0)
    model = resnet18(num_classes=10)
    images, labels = paddle.randn([4, 3, 96, 96]), paddle.randint(0, 10, [4])

    expected = gradients(model, images, labels)
    with ts.wrap(model, "disk_spill") as wrapped:
        found = gradients(model, images, labels)

    stats = wrapped.stats()
    print(stats)
    print(f"on disk at the peak: {stats.peak_bytes_by_tier['disk'] / 2**20:.0f} MiB; now: {stats.live.nbytes} bytes")
    print("gradients bitwise equal:", all(map(np.array_equal, found, expected)))


if __name__ == "__main__":
    main()
