"""Fine-tune a language model with LoRA in the Trainer of Transformers, its activations on the disk or the host.

On an accelerator the policy is cpu_offload, and the peak is that of the device; this was not measured on a card yet.
The weights are random: put AutoModelForCausalLM.from_pretrained(NAME) in their place.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tensorstash.integrations.transformers import StashCallback

HAS_DEVICE = torch.cuda.is_available()
POLICY = "cpu_offload" if HAS_DEVICE else "disk_spill"


def main() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=512))
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 512, (32, 128)).tolist()]
    arguments = TrainingArguments(
        "out", max_steps=3, per_device_train_batch_size=8, use_cpu=not HAS_DEVICE, report_to=[], save_strategy="no"
    )
    stash = StashCallback(POLICY)
    Trainer(model, arguments, train_dataset=rows, callbacks=[stash]).train()
    print(stash.stats())
    if HAS_DEVICE:
        print(f"peak of the device: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
