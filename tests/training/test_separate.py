"""Private skills of all tasks trained at once, against one run per task and against PEFT."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, get_linear_schedule_with_warmup

from helpers.command import start, train
from helpers.gyms import TASKS, TINY_T5, store_backbone, write_config, write_gym
from helpers.interruption import SignalAt, assert_same_run, called_back
from mttl.assembly.build_backbone import build_tokenizer
from mttl.checkpoints.run_folder import RunFolder
from mttl.commands.export import main as export
from mttl.config.load import load_config
from mttl.config.optim_schema import AdamW, TaskOptim
from mttl.data.data_module import TextToTextDataModule
from mttl.io.errors import ConfigError, MttlError
from mttl.skills.weights.lora import LoRAInventory
from mttl.tasks.folder import Gym
from mttl.training.callbacks import StopRequested
from mttl.training.loss import global_mean, task_means
from mttl.training.separate import SeparateModule, separate_steps
from training.test_ddp import finished

# 64-bit numbers, so that rounding is far below any other difference. The learning rates are high
# enough for gradients to exceed the clipping norm.
SECTIONS = {
    "router": {"kind": "private"},
    "skills": {"n_skills": "per_task", "alpha": 2},
    "trainer": {"precision": "64-true", "gradient_clip_val": 0.05},
    "optim": {"warmup": 0.3, "weight_decay": 0.1},
}
TOGETHER = {"separate": True, "tasks": {"copy": {"lr": 0.03}, "number": {"steps": 7, "lr": 0.004}}}
SINGLE = "trainer.precision=32-true"
ALONE = {"copy": (0.03, 12), "reverse": (0.01, 12), "number": (0.004, 7)}


@pytest.fixture(scope="module", autouse=True)
def identical_start() -> Iterator[None]:
    """Let the skills of any number of tasks begin with the same numbers."""

    def reset(self: LoRAInventory) -> None:
        one = torch.empty(1, *self.down.shape[1:])
        nn.init.normal_(one, std=0.3, generator=torch.Generator().manual_seed(1))
        self.down.data.copy_(one.expand_as(self.down))
        nn.init.zeros_(self.up)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoRAInventory, "reset_parameters", reset)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("separate")
    still = {**TINY_T5, "config": {**TINY_T5["config"], "dropout_rate": 0.0}}
    backbone = store_backbone(folder / "backbone", still)
    gym = write_gym(folder / "gym", lengths=(1, 6))
    # Tasks differ in their number of rows: 16, 11 and 5.
    for task, size in (("reverse", 11), ("number", 5)):
        file = gym / task / f"{task}_16_100_train.tsv"
        file.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:size]), "utf-8")
    sections = {**SECTIONS, "backbone": backbone, "data": {"batch_size": 7}}
    write_config(folder / "alone.yaml", gym, **sections)
    together = {**sections, "optim": {**SECTIONS["optim"], **TOGETHER}}
    return write_config(folder / "tiny.yaml", gym, **together)


@pytest.fixture(scope="module")
def whole(config: Path) -> RunFolder:
    return train(config, "whole")


@pytest.fixture(scope="module")
def single(config: Path) -> RunFolder:
    """The same in 32 bits: Lightning restores 64-bit weights into a model of 32 bits."""
    return train(config, "single", SINGLE)


def last_skills(run: RunFolder) -> dict[str, Tensor]:
    state = torch.load(run.last, weights_only=False)["state_dict"]
    return {name: value for name, value in state.items() if ".inventory." in name}


def best_steps(run: RunFolder) -> list[int]:
    callbacks = torch.load(run.last, weights_only=False)["callbacks"]
    return callbacks["SaveTaskBest"]["steps"].tolist()


@pytest.mark.every(3)
@pytest.mark.parametrize("task", TASKS)
def test_each_skill_is_that_of_a_run_of_its_task_alone(config, whole, task) -> None:
    rate, steps = ALONE[task]
    alone = train(
        config.parent / "alone.yaml",
        f"alone-{task}",
        *(f"data.partition={{train: [{task}]}}", "data.batch_size=2", f"optim.lr={rate}"),
        f"trainer.max_steps={steps}",
    )
    place, ours, theirs = list(TASKS).index(task), last_skills(whole), last_skills(alone)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name][place], value[0], rtol=1e-9, atol=1e-9, msg=name)
    assert any(value.abs().max() > 1e-3 for name, value in theirs.items() if name.endswith("up"))


@pytest.mark.every(3)
@pytest.mark.parametrize("task", TASKS)
def test_exported_adapters_are_those_of_pefts_own_loop(config, whole, task, tmp_path) -> None:
    """PEFT's model, PyTorch's optimizer and clipping, and a schedule of transformers."""
    out = tmp_path / "adapters"
    assert export([str(whole.path), "--all", "--out", str(out)]) == 0
    settings = load_config(str(config))
    (rate, n_steps), stop = ALONE[task], best_steps(whole)[list(TASKS).index(task)]
    base = AutoModelForSeq2SeqLM.from_pretrained(config.parent / "backbone")
    written = json.loads((out / task / "adapter_config.json").read_text("utf-8"))
    assert written["r"] == 2
    kept = ("r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora")
    model = get_peft_model(base, LoraConfig(**{name: written[name] for name in kept})).double()
    factors = {name: value for name, value in model.named_parameters() if value.requires_grad}
    for name, value in factors.items():
        nn.init.zeros_(value)
        if "lora_A" in name:
            one = torch.empty(1, value.shape[1], value.shape[0])
            nn.init.normal_(one, std=0.3, generator=torch.Generator().manual_seed(1))
            value.data.copy_(one[0].T)
    optimizer = torch.optim.AdamW(
        factors.values(), lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1
    )
    schedule = get_linear_schedule_with_warmup(optimizer, int(0.3 * n_steps), n_steps)
    gym = Gym(config.parent / "gym")
    one = settings.data.model_copy(update={"batch_size": 2, "cache_dir": None})
    data = TextToTextDataModule(
        gym, [task], build_tokenizer(settings.backbone), one, decoder_only=False
    )
    loader, step = data.train_dataloader(), 0
    while step < min(stop, n_steps):
        for batch in loader:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
            optimizer.zero_grad()
            model(**inputs).loss.backward()
            torch.nn.utils.clip_grad_norm_(factors.values(), 0.05)
            optimizer.step()
            schedule.step()
            step += 1
            if step == min(stop, n_steps):
                break
    exported = load_file(out / task / "adapter_model.safetensors")
    assert len(exported) == len(factors)
    for name, value in factors.items():
        found = exported[name.replace(".default", "")]
        torch.testing.assert_close(found.double(), value.data, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.every(2)
@pytest.mark.parametrize(("step", "validating"), [(5, False), (8, True)])
def test_a_resumed_run_is_bit_identical(config, single, step, validating, monkeypatch) -> None:
    name, builder = f"stopped-{step}", "mttl.commands.train_tasks.build_trainer"
    stop = SignalAt(step, validating=validating)
    with called_back(stop, monkeypatch, builder), pytest.raises(StopRequested):
        train(config, name, SINGLE)
    resumed = train(config, name, SINGLE, resume=True)
    assert_same_run(resumed, single)
    assert best_steps(resumed) == best_steps(single)
    best, expected = (torch.load(run.best, weights_only=False) for run in (resumed, single))
    for key, value in best["state_dict"].items():
        assert torch.equal(value, expected["state_dict"][key]), key


@pytest.mark.slow
def test_two_processes_train_the_same_skills(config: Path) -> None:
    """Each has two rows of a task per step, and one process four."""
    one = start(config, "one", "data.batch_size=12")
    finished(start(config, "two", "data.batch_size=6", "trainer.devices=2", "trainer.strategy=ddp"))
    finished(one)
    runs = config.parent / "runs"
    first, second = (last_skills(RunFolder(runs / name)) for name in ("one", "two"))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-6, atol=1e-7, msg=name)


def test_task_means_are_those_of_each_task() -> None:
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.tensor([2, 0, 2, 0]), torch.tensor([[1, 2], [1, -100], [3, -100], [5, 6]])
    losses = torch.rand(4, 2, generator=generator) * (labels != -100)
    found = task_means(losses, labels, ids, 4)
    own = {task: global_mean(losses[ids == task], labels[ids == task]) for task in (0, 2)}
    torch.testing.assert_close(found, torch.stack([own[0], *found[1:2] * 0, own[2], found[3] * 0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("router.kind=shared skills.n_skills=1", "router.kind must be private"),
        ("data.sampler.kind=uniform", "data.sampler.kind must be proportional.*not uniform"),
        ("data.token_budget=100", "data.token_budget must be null"),
        ("data.global_batch_size=8", "data.global_batch_size must be null"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches must be 1"),
        ("trainer.strategy=fsdp2 trainer.precision=32-true", "trainer.strategy must be auto or"),
        ("backbone.train=true", "backbone.train must be false"),
        ("optim.kind=adafactor optim.separate=true", "optim.kind must be adamw or adam"),
        ("optim.separate=false", "tasks needs separate: true"),
        ("optim.tasks={cpy: {lr: 1.0}}", "'cpy' is not a training task.*copy"),
        ("optim.tasks={copy: {steps: 13}}", "up to 13 steps, .* is 12; set trainer.max_steps=13"),
        (
            "optim.tasks={copy: {steps: 3},reverse: {steps: 2},number: {steps: 5}}",
            "up to 5 steps, .* is 12; set trainer.max_steps=5",
        ),
    ],
)
def test_settings_that_cannot_be_separate_are_refused(config, settings, message) -> None:
    words = settings.replace(": ", ":\0").split(" ")
    with pytest.raises(MttlError, match=message):
        train(config, "refused", *(word.replace("\0", " ") for word in words))


def test_a_policy_has_no_separate_training() -> None:
    from mttl.config.load import load_any_config

    with pytest.raises(ConfigError, match=r"optim.separate is only for text-to-text tasks"):
        load_any_config("babyai.yaml+babyai/private.yaml", ["optim.separate=true"])


def test_common_parameters_are_refused() -> None:
    model = nn.ModuleDict({"backbone": nn.Linear(5, 3)})
    message = r"does not work with 'backbone.weight', which has no slice"
    with pytest.raises(ConfigError, match=message):
        SeparateModule(model, None, {"a": "EM", "b": "EM"})  # type: ignore[arg-type]


def test_own_steps_are_by_task_id() -> None:
    own = {"b": TaskOptim(steps=4), "a": TaskOptim(lr=1.0)}
    assert separate_steps(AdamW(kind="adamw", separate=True, tasks=own), ["a", "b"], 9) == {1: 4}
