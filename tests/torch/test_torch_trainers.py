"""One line before or after a trainer of others takes the model: it stays wrapped, and trains the same."""

import accelerate
import pytest
import torch
import transformers

import tensorstash as ts

STEPS = 3


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.clone()}


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def wrapped(model):
    return ts.wrap(model, "compress", min_bytes=0)


def with_accelerate(when, precision, directory):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    model = llama()
    handle = wrapped(model) if when == "before" else None
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    if when == "after":
        handle = wrapped(prepared)
    for step in range(STEPS):
        batch = {name: row[None] for name, row in Tokens()[step].items()}
        accelerator.backward(prepared(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, handle


def with_trainer(when, precision, directory):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    model = llama()
    handle = wrapped(model) if when == "before" else None
    arguments = transformers.TrainingArguments(
        output_dir=directory,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        bf16=precision == "bf16",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Tokens())
    if when == "after":
        handle = wrapped(trainer.model)
    trainer.train()
    return model, handle


@pytest.mark.parametrize("train", [with_accelerate, with_trainer])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_wrapped_before_and_after_it_trains_the_same(train, precision, tmp_path):
    plain, _ = train("never", precision, str(tmp_path))
    for when in ("before", "after"):
        model, handle = train(when, precision, str(tmp_path))
        assert handle.stats().stashed.tensors > 0, when
        assert all(map(torch.equal, plain.parameters(), model.parameters())), when
