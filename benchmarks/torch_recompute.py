"""What Recompute leaves of the bytes that autograd holds, per architecture, and what it costs, in PyTorch.

    python -m benchmarks torch_recompute
    python -m benchmarks torch_recompute --rounds 9 --only llama,bert --size wide

What is left: distinct memory of saved tensors that still lives after a forward, without parameters, beside the same
without a policy.
Time: processor time of a step on one thread, of all threads of the process together, beside one without a policy in the
same round; the median of the ratios. As in training, a step follows one of its own kind, which is not timed: it would
pay for the memory that the kind before gave back to the system. Beside it, torch.utils.checkpoint around every block, and the time in ``pack`` for
each tensor that autograd saves. The wider a model, the more work behind each saved byte: sizes are small, and wide.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import tensorstash as ts
from benchmarks.harness.report import Report, columns, machine

Built = tuple[nn.Module, Callable[[nn.Module], Tensor]]
"""A model, and its loss."""

COLUMNS = columns("""
    model | type | held, MiB:.1f | left:.3f | step time:.3f | checkpoint:.3f | pack, us:.0f | made again
""")

_SDPA = {"attn_implementation": "sdpa"}
_IDS = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def transformer(model: str, inputs: dict[str, Tensor], **config: Any) -> Built:
    """Return a model of Transformers with random weights, and its loss on random inputs."""
    import transformers

    made = getattr(transformers, model)
    network = made(made.config_class(**config))
    return network, lambda network: network(**inputs).loss  # type: ignore[no-any-return]


def text(size: tuple[int, int]) -> dict[str, Tensor]:
    ids = torch.randint(3, 512, size)
    return {"input_ids": ids, "labels": ids}


def images(count: int, side: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(count, 3, side, side), "labels": torch.randint(0, 10, (count,))}


def vit(width: int) -> Built:
    sizes = {"hidden_size": width, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 4 * width}
    return transformer(
        "ViTForImageClassification", images(16, 64), image_size=64, patch_size=8, num_labels=10, **_SDPA, **sizes
    )


def resnet(width: int) -> Built:
    sizes = {"embedding_size": width, "hidden_sizes": [width, 2 * width, 4 * width], "depths": [2, 2, 2]}
    return transformer("ResNetForImageClassification", images(8, 96), num_labels=10, layer_type="basic", **sizes)


def encoder(width: int) -> Built:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
    inputs = torch.randn(4, 64, width)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), lambda model: model(inputs).square().mean()


def llama(model: str, tokens: tuple[int, int], width: int, layers: int, **more: Any) -> Built:
    shape = {"hidden_size": width, "intermediate_size": width * 43 // 16, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformer(model, text(tokens), **_SDPA, **_IDS, **shape, **heads, **more)


def gpt2(tokens: tuple[int, int], width: int, layers: int) -> Built:
    shape = {"n_embd": width, "n_layer": layers, "n_head": width // 64, "n_positions": tokens[1]}
    return transformer("GPT2LMHeadModel", text(tokens), **_SDPA, **_IDS, **shape)


def bert(tokens: tuple[int, int], width: int, layers: int) -> Built:
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return transformer("BertForMaskedLM", text(tokens), num_attention_heads=width // 64, **_SDPA, **_IDS, **shape)


_SMALL, _WIDE = (6, 128), (4, 256)
ARCHITECTURES: dict[str, dict[str, Callable[[], Built]]] = {
    "small": {
        "llama": lambda: llama("LlamaForCausalLM", _SMALL, 256, 3),
        "qwen3": lambda: llama("Qwen3ForCausalLM", _SMALL, 256, 3, head_dim=64),
        "gpt2": lambda: gpt2(_SMALL, 256, 3),
        "bert": lambda: bert(_SMALL, 256, 3),
        "vit": lambda: vit(192),
        "resnet": lambda: resnet(64),
        "encoder": lambda: encoder(128),
    },
    "wide": {
        "llama": lambda: llama("LlamaForCausalLM", _WIDE, 512, 4),
        "gpt2": lambda: gpt2(_WIDE, 384, 4),
        "bert": lambda: bert(_WIDE, 384, 4),
        "resnet": lambda: resnet(128),
    },
}
"""By size, and by name."""

BLOCKS = ("LlamaDecoderLayer", "Qwen3DecoderLayer", "GPT2Block", "BertLayer", "ViTLayer", "ResNetBasicLayer")
BLOCKS += ("TransformerEncoderLayer",)


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Run every block of a model under :func:`torch.utils.checkpoint.checkpoint` until the block of code ends."""
    blocks = [module for module in model.modules() if type(module).__name__ in BLOCKS]
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


class Saves:
    """What autograd saves in a forward: the seconds of each ``pack``, and the memory, without parameters.

    Args:
        model: whose parameters do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seconds: list[float] = []
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what goes through the innermost hooks until the block of code ends."""
        inner, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)

        def pack(tensor: Tensor) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._parameters:
                self._memory[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            del storage
            started = perf_counter()
            try:
                return inner(tensor)
            finally:
                self.seconds.append(perf_counter() - started)

        with saved_tensors_hooks(pack, unpack):
            yield

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that still lives."""
        return sum(nbytes for storage, nbytes in self._memory.values() if not storage.expired())


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
            started = process_time()
            self.forward(around).backward()  # type: ignore[no-untyped-call]
        return process_time() - started

    def saves(self, around: Any) -> tuple[int, float]:
        """Return the bytes that live after a forward, and the mean seconds of a ``pack``."""
        saves = Saves(self.model)
        with around as session, saves.noted():
            loss = self.forward(nullcontext())
        nbytes = 0
        if isinstance(session, ts.Stash):
            session.drain()
            nbytes = session.stats().live.nbytes
        nbytes += saves.nbytes
        loss.backward()  # type: ignore[no-untyped-call]
        return nbytes, sum(saves.seconds) / len(saves.seconds)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of steps that are timed (5)")
    parser.add_argument("--size", choices=ARCHITECTURES, default="small", help="of the models (small)")
    parser.add_argument("--only", action="append", choices=ARCHITECTURES["small"], help="this architecture; repeatable")


def main(options: argparse.Namespace, report: Report) -> None:
    """Measure, and report a row for each architecture and type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report.conditions = machine("torch", "transformers")
    report.begin(COLUMNS)
    builds = ARCHITECTURES[options.size]
    for name in options.only or builds:
        for autocast in (False, True):
            torch.manual_seed(0)
            bench = Bench(*builds[name](), autocast)
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
            made = sorted(stash.stats().recomputed.items(), key=lambda item: -item[1].bytes_in)
            times = (median(some[1:]) for some in (ratios, again, packs))
            rules = ", ".join(rule for rule, _ in made[:4])
            report.row(name, "autocast" if autocast else "float32", native / 2**20, left / native, *times, rules)
