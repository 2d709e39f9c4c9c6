"""What Recompute leaves of the bytes that autograd holds, per architecture, and what it costs, in PyTorch.

    python -m benchmarks torch_recompute --rounds 9 --only llama --only bert --size wide

What is left: distinct memory of saved tensors that lives after a forward, without parameters, beside no policy. Time:
processor time of a step on one thread, of all threads together, beside no policy in the same round; the median of the
ratios. As in training, a step follows one of its kind, which is not timed: it would pay for memory that the kind before
gave back to the system. Beside it, torch.utils.checkpoint around every block, and the time in ``pack`` for each
tensor that autograd saves. The wider a model, the more work behind each saved byte: sizes are small, and wide.
"""

import argparse
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

import tensorstash as ts
from benchmarks.harness.report import Report, columns
from benchmarks.harness.runner import spent
from benchmarks.models.torch import checkpoint, forwards

Built = tuple[nn.Module, Callable[[nn.Module], Tensor]]
"""A model, and its loss."""

COLUMNS = columns("""
    model | type | held, MiB:.1f | left:.3f | step time:.3f | checkpoint:.3f | pack, us:.0f | made again
""")

Sizes = tuple[int, int, tuple[int, int]]
"""Width, or first channels; layers; examples and tokens of each."""


def transformer(model: str, inputs: dict[str, Tensor], sizes: Sizes, **config: Any) -> Built:
    """Return a model of Transformers with random weights, and its loss on random inputs."""
    import transformers

    made, (width, layers, _) = getattr(transformers, model), sizes
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    usual = {"num_attention_heads": 4, "attn_implementation": "sdpa"}
    network = made(made.config_class(**shape | usual | config))
    return network, lambda network: network(**inputs).loss  # type: ignore[no-any-return]


def language(model: str, sizes: Sizes, **config: Any) -> Built:
    """Return a model of Transformers that learns tokens."""
    ids = torch.randint(3, 512, sizes[-1])
    tokens = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return transformer(model, {"input_ids": ids, "labels": ids}, sizes, **tokens | config)


def llama(model: str, sizes: Sizes, **config: Any) -> Built:
    return language(model, sizes, intermediate_size=sizes[0] * 43 // 16, num_key_value_heads=2, **config)


def vision(model: str, sizes: Sizes, images: tuple[int, int], **config: Any) -> Built:
    """Return a model of Transformers that classifies so many images of such a side."""
    count, side = images
    inputs = {"pixel_values": torch.randn(count, 3, side, side), "labels": torch.randint(0, 10, (count,))}
    return transformer(model, inputs, sizes, num_labels=10, **config)


def resnet(sizes: Sizes) -> Built:
    width = sizes[0]
    shape = {"embedding_size": width, "hidden_sizes": [width, 2 * width, 4 * width], "depths": [2, 2, 2]}
    eager = {"layer_type": "basic", "attn_implementation": "eager"}
    return vision("ResNetForImageClassification", sizes, (8, 96), **shape, **eager)


def encoder(sizes: Sizes) -> Built:
    width, layers, _ = sizes
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
    inputs = torch.randn(4, 64, width)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), lambda model: model(inputs).square().mean()


ARCHITECTURES: dict[str, tuple[int, int, Callable[[Sizes], Built]]] = {
    "llama": (256, 512, partial(llama, "LlamaForCausalLM")),
    "qwen3": (256, 512, partial(llama, "Qwen3ForCausalLM", head_dim=64)),
    "gpt2": (256, 384, lambda sizes: language("GPT2LMHeadModel", sizes, num_attention_heads=sizes[0] // 64)),
    "bert": (256, 384, lambda sizes: language("BertForMaskedLM", sizes, num_attention_heads=sizes[0] // 64)),
    "vit": (192, 384, partial(vision, "ViTForImageClassification", images=(16, 64), image_size=64, patch_size=8)),
    "resnet": (64, 128, resnet),
    "encoder": (128, 256, encoder),
}
"""Width of the small and of the wide one, and how it is built; by name."""

REST = {"small": (3, (6, 128)), "wide": (4, (4, 256))}
"""Layers, examples and tokens, by size."""

BLOCKS = ("LlamaDecoderLayer", "Qwen3DecoderLayer", "GPT2Block", "BertLayer", "ViTLayer", "ResNetBasicLayer")
BLOCKS += ("TransformerEncoderLayer",)


def checkpointed(model: nn.Module) -> AbstractContextManager[None]:
    """Run every block of a model under :func:`torch.utils.checkpoint.checkpoint` until the block of code ends."""
    blocks = [module for module in model.modules() if type(module).__name__ in BLOCKS]
    return forwards(blocks, lambda forward: partial(checkpoint, forward))


@dataclass
class Bench:
    """A model that trains, in float32 or under autocast."""

    model: nn.Module
    loss_of: Callable[[nn.Module], Tensor]
    autocast: bool

    def forward(self, around: Any) -> Tensor:
        with around, torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.loss_of(self.model)

    def step(self, around: Any) -> float:
        """Run two training steps, and return the processor seconds of the second."""
        for _ in range(2):
            self.model.zero_grad(set_to_none=True)
            _, cpu = spent(lambda: self.forward(around).backward())  # type: ignore[no-untyped-call]
        return cpu

    def saves(self, around: Any) -> tuple[int, float]:
        """Return the bytes that live after a forward, parameters aside, and the mean seconds of a ``pack``."""
        parameters = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        memory: dict[int, tuple[StorageWeakRef, int]] = {}
        spent: list[float] = []

        def noted(pack: Callable[[Tensor], Any], tensor: Tensor) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                memory[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            del storage
            started = perf_counter()
            try:
                return pack(tensor)
            finally:
                spent.append(perf_counter() - started)

        with around as session:
            pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)
            with saved_tensors_hooks(partial(noted, pack), unpack):
                loss = self.forward(nullcontext())
        nbytes = 0
        if isinstance(session, ts.Stash):
            session.drain()
            nbytes = session.stats().live.nbytes
        nbytes += sum(size for storage, size in memory.values() if not storage.expired())
        loss.backward()  # type: ignore[no-untyped-call]
        return nbytes, sum(spent) / len(spent)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of steps that are timed (5)")
    parser.add_argument("--size", choices=REST, default="small", help="of the models (small)")
    parser.add_argument("--only", action="append", choices=ARCHITECTURES, help="this architecture; repeatable")


def main(options: argparse.Namespace, report: Report) -> None:
    """Measure, and report a row for each architecture and type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report.begin(COLUMNS)
    for name in options.only or ARCHITECTURES:
        *widths, build = ARCHITECTURES[name]
        for autocast in (False, True):
            torch.manual_seed(0)
            bench = Bench(*build((widths[options.size == "wide"], *REST[options.size])), autocast)
            bench.model.train()
            plain = saved_tensors_hooks(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), lambda kept: kept)
            native, _ = bench.saves(plain)
            left, _ = bench.saves(ts.stash(ts.Recompute(), framework="torch", min_bytes=1))
            stash = ts.stash(ts.Recompute(), framework="torch")
            ratios, again, packs = [], [], []
            for _ in range(options.rounds + 1):
                before = bench.step(nullcontext())
                ratios.append(bench.step(stash) / before)
                with checkpointed(bench.model):
                    again.append(bench.step(nullcontext()) / before)
                packs.append(1e6 * bench.saves(stash)[1])
            times, made = (median(some[1:]) for some in (ratios, again, packs)), stash.stats().recomputed
            rules = ", ".join(sorted(made, key=lambda rule: -made[rule].bytes_in)[:4])
            report.row([name, "autocast" if autocast else "float32", native / 2**20, left / native, *times, rules])
