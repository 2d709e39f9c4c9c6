"""What Recompute leaves of the bytes that autograd holds, per architecture, and what it costs, in PyTorch.

    python -m benchmarks torch_recompute
    python -m benchmarks torch_recompute --rounds 9 --only llama,bert

What is left: distinct memory that the graph of a forward holds, without parameters, beside the same without a policy.
Time: processor time of a step on one thread, beside one without a policy in the same round; the median of the ratios.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import tensorstash as ts
from benchmarks.harness.report import Report, machine
from tensorstash.abilities.recipes import Leaf
from tensorstash.engine.recompute.inputs import KeptHandle
from tensorstash.engine.recompute.recomputed import RecomputedHandle

_IDS = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def language_model(kind: str, **config: Any) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return a language model of Transformers with random weights, and its loss on random tokens."""
    import transformers

    made = getattr(transformers, f"{kind}Config")(attn_implementation="sdpa", **_IDS, **config)
    head = "ForMaskedLM" if kind == "Bert" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model, tokens = getattr(transformers, f"{kind}{head}")(made), torch.randint(3, 512, (6, 128))
    return model, lambda model: model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]


def vit() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    import transformers

    sizes = {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 768}
    made = transformers.ViTConfig(image_size=64, patch_size=8, attn_implementation="sdpa", num_labels=10, **sizes)
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
    model = transformers.ViTForImageClassification(made)
    return model, lambda model: model(pixel_values=images, labels=labels).loss  # type: ignore[no-any-return]


def resnet() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    import transformers

    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256], "depths": [2, 2, 2], "layer_type": "basic"}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10, **sizes))
    images, labels = torch.randn(8, 3, 96, 96), torch.randint(0, 10, (8,))
    return model, lambda model: model(images, labels=labels).loss  # type: ignore[no-any-return]


def encoder() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, activation="gelu", batch_first=True)
    inputs = torch.randn(4, 64, 128)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), lambda model: model(inputs).square().mean()


_WIDE = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]] = {
    "llama": lambda: language_model("Llama", intermediate_size=688, num_key_value_heads=2, **_WIDE),
    "qwen3": lambda: language_model("Qwen3", intermediate_size=688, num_key_value_heads=2, head_dim=64, **_WIDE),
    "gpt2": lambda: language_model("GPT2", n_embd=256, n_layer=3, n_head=4, n_positions=128),
    "bert": lambda: language_model("Bert", intermediate_size=1024, **_WIDE),
    "vit": vit,
    "resnet": resnet,
    "encoder": encoder,
}


def handles(loss: Tensor) -> Iterator[Any]:
    """Yield what the graph of a loss holds in place of each saved tensor."""
    waiting: list[Any] = [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for name in dir(type(node)):
            if name.startswith("_raw_saved_"):
                shown = getattr(node, name)
                yield from (one.data for one in (shown if isinstance(shown, (tuple, list)) else (shown,)) if one)
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        waiting += new


def held(handle: Any) -> Iterator[tuple[int, int]]:
    """Yield names and bytes of the memory that a handle keeps alive."""
    if type(handle) is tuple:
        handle = handle[1]
    if isinstance(handle, KeptHandle):
        yield from held(handle.peek())
    elif isinstance(handle, Tensor):
        yield handle.untyped_storage().data_ptr(), handle.untyped_storage().nbytes()
    elif isinstance(handle, RecomputedHandle):
        for each in handle.content.inputs:
            if not isinstance(each, Leaf):
                yield from held(each)


def step(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], around: Any, autocast: bool) -> float:
    """Run a training step, and return its seconds."""
    model.zero_grad(set_to_none=True)
    started = process_time()
    with around, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = loss_of(model)
    loss.backward()  # type: ignore[no-untyped-call]
    return process_time() - started


def bytes_held(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], around: Any, autocast: bool) -> int:
    """Return the bytes that the graph of a forward holds, without parameters."""
    with around as session, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = loss_of(model)
    if session is not None:
        session.drain()
    memory = dict(one for handle in handles(loss) for one in held(handle))
    for parameter in model.parameters():
        memory.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(memory.values()) + (0 if session is None else session.stats().live.nbytes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of steps that are timed (5)")
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="architectures, by name")


def main(options: argparse.Namespace, report: Report) -> int:
    """Measure, and report a row for each architecture and type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report.begin("model", "type", "held, MiB", "left", "step time", "made again", left=("model", "type", "made again"))
    for name in options.only.split(","):
        for autocast in (False, True):
            torch.manual_seed(0)
            model, loss_of = ARCHITECTURES[name]()
            model.train()
            plain = saved_tensors_hooks(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), lambda kept: kept)
            native = bytes_held(model, loss_of, plain, autocast)
            left = bytes_held(model, loss_of, ts.stash(ts.Recompute(), framework="torch", min_bytes=1), autocast)
            stash = ts.stash(ts.Recompute(), framework="torch")
            ratios = []
            for _ in range(options.rounds + 1):
                before = step(model, loss_of, nullcontext(), autocast)
                ratios.append(step(model, loss_of, stash, autocast) / before)
            again = sorted(stash.stats().recomputed.items(), key=lambda item: -item[1].bytes_in)
            rules = ", ".join(rule for rule, _ in again[:4])
            share, ratio = f"{left / native:.3f}", f"{median(ratios[1:]):.3f}"
            report.row(name, "autocast" if autocast else "float32", f"{native / 2**20:.1f}", share, ratio, rules)
    report.conditions = machine(("torch", "transformers"))
    return 0
