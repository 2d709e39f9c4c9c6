"""What the callbacks log, where training fails, and what is said where a library is missing."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from cells import Cell
from lazy import Lazy

import tensorstash as ts
from tensorstash.errors import ConfigError
from tests.processes import output_of

datasets, lightning, trainers, transformers, wandb = map(
    Lazy, ("datasets", "lightning", "trainers", "transformers", "wandb")
)
with_lightning, with_transformers = (
    Lazy(f"tensorstash.integrations.{library}") for library in ("lightning", "transformers")
)
events = Lazy("tensorboard.backend.event_processing.event_accumulator")
CELL = Cell("", "fp32", "plain", False, False, 1)
SCALAR = "tensorstash/stashed_MiB"

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trainers


def trainer_of(kind: Any, directory: Path, report_to: list[str], callback: Any, **options: Any) -> Any:
    trainers.forget_accelerators()
    given = {**trainers.ARGUMENTS, "output_dir": str(directory), "logging_steps": 1, "report_to": report_to}
    args = transformers.TrainingArguments(**given)
    data = datasets.Dataset.from_list(trainers.rows(1))
    parts = {"data_collator": trainers.collate, "callbacks": [callback], **options}
    return kind(model=trainers.llama(), args=args, train_dataset=data, **parts)


def logged_to_tensorboard(directory: Path) -> set[str]:
    files = sorted(directory.rglob("events.out.tfevents*"))
    tags: set[str] = set()
    for file in files:
        found = events.EventAccumulator(str(file))
        found.Reload()
        tags |= set(found.Tags()["scalars"])
    return tags


def test_the_history_of_transformers_has_a_line_per_step(tmp_path: Path) -> None:
    callback = with_transformers.StashCallback("compress", **trainers.OPTIONS)
    trainer = trainer_of(transformers.Trainer, tmp_path, [], callback)
    trainer.train()
    found = [entry[SCALAR] for entry in trainer.state.log_history if "loss" in entry]
    assert len(found) == trainers.STEPS
    assert all(number == found[0] > 0 for number in found)
    assert ts.wrapped(trainer.model) == ()


def test_the_mixin_logs_to_every_reporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "WATCH": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    callback = with_transformers.StashCallback("compress", **trainers.OPTIONS)
    trainer = trainer_of(trainers.LoggedTrainer, tmp_path, ["tensorboard", "wandb"], callback)
    try:
        trainer.train()
        assert {"train/loss", f"train/{SCALAR}"} <= logged_to_tensorboard(tmp_path / "logs")
        logged = [entry[SCALAR] for entry in trainer.state.log_history if "loss" in entry]
        assert wandb.run is not None
        assert dict(wandb.run.summary)[f"train/{SCALAR}"] == logged[-1] > 0
    finally:
        wandb.teardown()


def test_the_callback_of_lightning_logs_to_the_loggers(tmp_path: Path) -> None:
    logger = lightning.pytorch.loggers.TensorBoardLogger(str(tmp_path))
    callback = with_lightning.StashCallback("compress", **trainers.OPTIONS)
    trainer = trainers.lightning_trainer(str(tmp_path), callbacks=[callback], logger=logger, log_every_n_steps=1)
    trainer.fit(trainers.Lit(trainers.llama()), trainers.loader(CELL))
    assert trainer.callback_metrics[SCALAR] > 0
    logger.experiment.flush()
    assert SCALAR in logged_to_tensorboard(tmp_path)


def test_a_training_that_fails_leaves_a_model_that_can_be_trained_again(tmp_path: Path) -> None:
    class Fails(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise OSError("no more")

    stash = with_transformers.StashCallback("compress", **trainers.OPTIONS)
    trainer = trainer_of(transformers.Trainer, tmp_path, [], stash, callbacks=[stash, Fails()])
    for _ in range(2):
        with pytest.raises(OSError, match="no more"):
            trainer.train()
        assert len(ts.wrapped(trainer.model)) == 1
    assert stash.stats().stashed.tensors > 0


def test_a_fit_that_fails_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    class Fails(lightning.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise OSError("no more")

    stash = with_lightning.StashCallback("compress", **trainers.OPTIONS)
    trainer = trainers.lightning_trainer(str(tmp_path), callbacks=[stash, Fails()])
    module = trainers.Lit(trainers.llama())
    with pytest.raises(OSError, match="no more"):
        trainer.fit(module, trainers.loader(CELL))
    assert ts.wrapped(module) == ()


@pytest.mark.parametrize("library", [with_transformers, with_lightning], ids=["transformers", "lightning"])
def test_a_callback_in_use_is_copied_and_pickled_without_what_runs(library: Any) -> None:
    def begin(callback: Any, model: Any) -> None:
        if library is with_transformers:
            callback.on_train_begin(None, None, None, model=model)
        else:
            callback.on_fit_start(None, model)

    stash = library.StashCallback("compress | disk_spill", **trainers.OPTIONS)
    begin(stash, trained := trainers.llama())
    for again in (copy.deepcopy(stash), pickle.loads(pickle.dumps(stash))):
        assert again.stats() == ts.Stats()
        begin(again, model := torch.nn.Linear(2, 2))
        assert len(ts.wrapped(model)) == 1
        ts.unwrap(model)
    ts.unwrap(trained)


def test_where_a_library_is_missing_the_command_that_installs_it_is_named() -> None:
    commands = {"lightning": "lightning", "transformers": "transformers", "paddle": "'tensorstash[paddle]'"}
    program = (
        "import sys\nfrom importlib import import_module\nfrom tensorstash.errors import MissingDependencyError\n"
        "for library in sys.argv[1:]:\n    sys.modules[library] = None\n"
        "    try:\n        import_module(f'tensorstash.integrations.{library}')\n"
        "    except MissingDependencyError as error:\n        print(error)"
    )
    said = output_of(program, *commands).splitlines()
    assert len(said) == len(commands)
    for line, (library, command) in zip(said, commands.items(), strict=True):
        assert f"{library} is not installed; run: pip install {command}" in line


def test_what_is_no_policy_is_refused_before_training_begins() -> None:
    with pytest.raises(ConfigError, match="did you mean 'compress'"):
        with_transformers.StashCallback("compres")
    with pytest.raises(ConfigError, match=r"StashCallback\.min_bytes"):
        with_lightning.StashCallback("compress", min_bytes="64 KO")
    with pytest.raises(ConfigError, match=r"StashCallback\.limits"):
        with_transformers.StashCallback("compress", limits="64 MiB")
