"""The Lightning module on tiny models, against loops over single rows and single tokens."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from helpers.backbones import BACKBONES, VOCABULARY, tiny_t5
from helpers.compare import relative_error
from helpers.skills import skilled
from helpers.trainer import quiet_trainer
from mttl.config.optim_schema import AdamW
from mttl.config.schema import Generation
from mttl.data.collate import EvalCollator, TrainCollator
from mttl.models.teacher_forcing import forced_logits
from mttl.routing import PolytroponRouter
from mttl.routing.task.priors import RoutingPrior
from mttl.skills import SkilledModel
from mttl.training.text_to_text import Prediction, TextToTextModule

DECODER_ONLY = {"t5": False, "bart": False, "llama": True, "gpt2": True}
TASK_IDS = (0, 2, 0, 2, 2)
METRICS = {"first": "EM", "unseen": "EM", "last": "EM"}
MOST_TOKENS = 4


def tokenizer() -> PreTrainedTokenizerFast:
    """One word per id, so that any answer of a random model is a text."""
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def rows() -> list[dict[str, Any]]:
    """Return prepared rows whose prompts and answers all differ in length."""
    generator = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()

    return [
        {
            "row": row,
            "task_id": task_id,
            "sample": 100,
            "input": f"input {row}",
            **{"references": ["nothing"], "prefix_length": 0, "columns": ""},
            "input_ids": ids(2 + row),
            "labels": ids(5 - row),
        }
        for row, task_id in enumerate(TASK_IDS)
    ]


def module(model: SkilledModel, metrics: dict[str, str] = METRICS, **settings: Any) -> Any:
    built = TextToTextModule(model, tokenizer(), metrics, max_output_length=MOST_TOKENS, **settings)
    return built.eval()


@torch.no_grad()
def answer_logprobs(model: SkilledModel, row: dict[str, Any]) -> Tensor:
    """Return the distribution of each token of a row's answer, from one pass per token."""
    config: Any = model.backbone.config
    found = []
    for position in range(len(row["labels"])):
        before = row["labels"][:position]
        if config.is_encoder_decoder:
            start = [config.decoder_start_token_id, *before]
            inputs = {"input_ids": [row["input_ids"]], "decoder_input_ids": [start]}
        else:
            inputs = {"input_ids": [[*row["input_ids"], *before]]}
        tensors = {name: torch.tensor(value) for name, value in inputs.items()}
        logits = model(torch.tensor([row["task_id"]]), **tensors).logits[0, -1]
        found.append(logits.log_softmax(-1))
    return torch.stack(found)


def answer_losses(model: SkilledModel, row: dict[str, Any]) -> Tensor:
    return torch.stack(
        [-p[i] for p, i in zip(answer_logprobs(model, row), row["labels"], strict=True)]
    )


def answer(model: SkilledModel, row: dict[str, Any]) -> str:
    """Return the greedy answer to one row alone."""
    prompt = torch.tensor([row["input_ids"]])
    ids = model.generate(
        torch.tensor([row["task_id"]]), input_ids=prompt, max_new_tokens=MOST_TOKENS
    )
    config: Any = model.backbone.config
    start = 0 if config.is_encoder_decoder else prompt.shape[1]
    return str(tokenizer().decode(ids[0, start:], skip_special_tokens=True))


@pytest.mark.parametrize("family", BACKBONES)
def test_every_token_is_predicted_from_those_before_it(family: str) -> None:
    model = skilled(BACKBONES[family]())
    batch = TrainCollator(0, DECODER_ONLY[family])(rows())
    losses, labels, _ = module(model).nll(batch)
    for row, found, kept in zip(rows(), losses, labels != -100, strict=True):
        # Padding and batches change the order of sums, and nothing else.
        assert relative_error(found[kept], answer_losses(model, row)) < 1e-5
    assert not losses[labels == -100].any()


def test_smoothing_is_asked_for_and_not_assumed() -> None:
    model = skilled(tiny_t5())
    batch = TrainCollator(0, False)(rows())
    smoothed = module(model, optim=AdamW(kind="adamw", label_smoothing=0.3))
    plain, labels, _ = smoothed.nll(batch)
    assert torch.equal(plain, module(model).nll(batch)[0])
    step = smoothed.training_step(batch, 0)
    expected = smoothed.training_losses(batch)[0].sum() / (labels != -100).sum()
    torch.testing.assert_close(step, expected)
    assert step != plain.sum() / (labels != -100).sum()


def test_a_step_adds_the_prior_and_what_layers_owe() -> None:
    model = skilled(tiny_t5())
    batch = TrainCollator(0, False)(rows())
    plain = module(model).training_step(batch, 0)
    assert isinstance(model.router, PolytroponRouter)
    model.router.prior = RoutingPrior(sparsity=0.5)  # type: ignore[assignment]
    model.backbone.register_forward_pre_hook(
        lambda *_: model.slot.current.add_losses({"balance": torch.tensor(2.5)})
    )
    prior = 0.5 * model.router.probabilities().mean()
    torch.testing.assert_close(module(model).training_step(batch, 0), plain + prior + 2.5)


def test_a_step_adds_what_a_router_learns_from_its_draws() -> None:
    model = skilled(tiny_t5(), router="score_function").train()
    batch = TrainCollator(0, False)(rows())
    step = TextToTextModule(model, tokenizer(), METRICS)
    losses, labels, routing = step.training_losses(batch)
    # The first time a task is seen, an example is compared with its others in the batch.
    fared = losses.detach().sum(1) / (labels != -100).sum(1)
    chances = model.router.logits[:, batch["task_ids"]].log_softmax(-1)
    chosen = (chances * routing.mixing).sum((0, 2, 3))
    same = (batch["task_ids"] == batch["task_ids"][:, None]) & ~torch.eye(len(fared)).bool()
    baselines = (same * fared).sum(1) / same.sum(1)
    torch.testing.assert_close(routing.losses["choice"], ((fared - baselines) * chosen).mean())
    total = routing.losses["choice"] + losses.sum()
    total.backward()
    used = batch["task_ids"].unique()
    assert model.router.logits.grad[:, used].abs().sum((0, 2, 3)).all()


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_two_draws_have_to_agree(family: str) -> None:
    model = skilled(BACKBONES[family](), router="random").train()
    batch = TrainCollator(0, DECODER_ONLY[family])(rows())
    step = TextToTextModule(model, tokenizer(), METRICS)
    model.router.consistency = 0.0
    torch.manual_seed(7)
    assert not step.training_losses(batch)[2].losses
    model.router.consistency = 0.5
    torch.manual_seed(7)
    _, labels, routing = step.training_losses(batch)
    torch.manual_seed(7)
    passes = []
    for _ in range(2):
        with model.slot.use(model.route(batch["task_ids"], inputs=batch)) as used:
            passes.append(forced_logits(model.backbone, batch)[0].log_softmax(-1))
    assert torch.equal(step.nll(batch)[1], labels)
    expected = torch.zeros(())
    for p, q in zip(*passes, strict=True):  # the answers' tokens
        one, other = ((p.exp() * (p - q)).sum(), (q.exp() * (q - p)).sum())
        expected = expected + 0.5 * (one + other) / len(passes[0])
    torch.testing.assert_close(routing.losses["consistency"], 0.5 * expected)
    assert not torch.equal(used.mixing, routing.mixing)
    routing.losses["consistency"].backward()
    layer = next(iter(model.skilled_layers().values()))
    drawn = (used.mixing + routing.mixing)[layer.group, 0, 0] > 0
    learned = layer.inventory.up.grad.flatten(1).any(1)
    assert torch.equal(learned, drawn)  # both passes learn to agree, and the others nothing


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_a_step_adds_the_divergence_from_a_fixed_model(family: str) -> None:
    model, other = (skilled(BACKBONES[family](), n_skills=n) for n in (3, 2))
    batch = TrainCollator(0, DECODER_ONLY[family])(rows())
    step = module(model)
    assert not step.training_losses(batch)[2].losses
    kept = step._kept(step.state_dict())
    other_ids = torch.tensor([1, 2, 0])  # the other model's order of the tasks
    step.stay_near(other, other_ids, 0.5)
    routing = step.training_losses(batch)[2]
    expected, n_tokens = 0.0, 0
    for row in rows():
        there = row | {"task_id": int(other_ids[row["task_id"]])}
        for p, q in zip(
            answer_logprobs(other, there), answer_logprobs(model.eval(), row), strict=True
        ):
            expected += sum(float(a.exp() * (a - b)) for a, b in zip(p, q, strict=True))
            n_tokens += 1
    # Sums over the vocabulary in other orders, and padded batches.
    assert routing.losses["divergence"].item() == pytest.approx(0.5 * expected / n_tokens, rel=1e-4)
    assert expected > 0
    step.train().training_losses(batch)
    assert (model.training, other.training) == (True, False)
    routing.losses["divergence"].backward()
    assert not any(own.requires_grad for own in other.parameters())
    assert step._kept(step.state_dict()) == kept  # checkpoints lack the fixed model


def test_validation_logs_the_mean_of_each_task_and_the_mean_over_tasks() -> None:
    model, some = skilled(tiny_t5()), rows()
    for row in (0, 1, 4):  # which are answered rightly
        some[row]["references"] = ["nothing", answer(model, some[row])]
    assert len({row["references"][-1] for row in some}) == 4
    losses = [float(answer_losses(model, row).mean()) for row in some]
    first, last = (losses[0] + losses[2]) / 2, (losses[1] + losses[3] + losses[4]) / 3
    expected = {
        "val/first/loss": first,
        "val/last/loss": last,
        # Over tasks, not over rows: they differ, as the tasks have two rows and three.
        "val/loss": (first + last) / 2,
        "val/first/score": 1 / 2,
        "val/last/score": 2 / 3,
        "val/score": (1 / 2 + 2 / 3) / 2,
    }
    loader: Any = DataLoader(some, batch_size=2, collate_fn=EvalCollator(0, False))  # type: ignore[arg-type]
    (logged,) = quiet_trainer().validate(module(model), loader, verbose=False)
    # The task without a row is not mentioned. float32 sums in another order.
    assert logged == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_an_answer_is_what_the_model_says_to_the_row_alone(family: str) -> None:
    model, some = skilled(BACKBONES[family]()), rows()
    batch = EvalCollator(0, DECODER_ONLY[family])(some)
    expected = [
        Prediction(
            *(row["task_id"], 100, row["row"], row["input"], ("nothing",), answer(model, row)),
            source={"input": row["input"], "columns": {}},
        )
        for row in some
    ]
    assert module(model).predict(batch) == expected
    assert len({row.prediction for row in expected}) > 2


OWN = {"no_repeat_ngram_size": 1, "min_length": 4, "repetition_penalty": 9.0, "guidance_scale": 2.0}
OWN |= {"suppress_tokens": [5, 6], "forced_bos_token_id": 7, "stop_strings": ["w5"]}
OWN |= {"num_return_sequences": 2, "output_scores": True, "return_dict_in_generate": True}


@pytest.mark.parametrize("family", BACKBONES)
@pytest.mark.parametrize("n_beams", [1, 2])
def test_settings_of_the_backbone_are_applied_only_where_they_are_asked_for(family, n_beams):
    model = skilled(BACKBONES[family]()).eval()
    batch = EvalCollator(0, DECODER_ONLY[family])(rows())

    def answers(**settings: Any) -> list[str]:
        trained = module(model, generation=Generation(num_beams=n_beams, **settings))
        return trained.answer(batch["task_ids"], batch["generation_inputs"])

    own: Any = model.backbone.generation_config
    own.forced_eos_token_id = None  # BART's
    expected = answers()
    for name, value in OWN.items():
        setattr(own, name, value)
    assert answers() == expected
    applied = answers(from_backbone=True)
    assert applied != expected
    if not DECODER_ONLY[family]:  # which continue what begins already
        assert all(text.split()[0] == "w7" for text in applied)
