"""The few-shot loop keeps the best weights."""

import math
from typing import Any

import pytest
import torch
from lightning_fabric.plugins import MixedPrecision
from transformers import ByT5Tokenizer

from helpers.adapted import BATCH
from helpers.backbones import tiny_t5
from helpers.skills import skilled
from mttl.adaptation import fine_tune as few_shot
from mttl.adaptation.fine_tune import SINGLE, fine_tune
from mttl.adaptation.modes import apply_mode
from mttl.config.optim_schema import Adam, AdamW
from mttl.io.errors import DivergedError
from mttl.skills import SkilledModel
from mttl.training.text_to_text import TextToTextModule


def module_of(model: SkilledModel, **optim: Any) -> TextToTextModule:
    return TextToTextModule(model, ByT5Tokenizer(), {"new": "EM"}, AdamW(kind="adamw", **optim))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("scores", "kept", "best"),
    [
        ([0.1, 0.5, 0.3, 0.2], 2, 0.5),
        ([0.1, 0.2, 0.3, 0.4], 6, 0.4),
        ([0.9, 0.5, 0.3, 0.2], 0, 0.9),
        ([math.nan, math.nan, 0.0, math.nan], 4, 0.0),
        ([0.1, 0.5, 0.5, 0.5], 2, 0.5),
        ([0.1, 1.0], 2, 1.0),  # no step could be better
    ],
)
def test_the_weights_of_the_best_score_are_kept(monkeypatch, scores, kept, best) -> None:
    """Scores stand for steps 0, 2, 4 and 6; what is kept is compared with a copy of each step."""
    model = skilled(tiny_t5())
    module = module_of(model, lr=0.1)
    snapshots = []

    def score(module: TextToTextModule, batches: object, precision: object) -> tuple[float, list]:
        snapshots.append([value.detach().clone() for value in model.parameters()])
        step = len(snapshots) - 1
        return scores[step], [step]

    monkeypatch.setattr(few_shot, "score_batches", score)
    found = fine_tune(module, [BATCH], [], n_steps=6, eval_every=2)
    assert found == (kept, best, [kept // 2])
    for found, expected in zip(model.parameters(), snapshots[kept // 2], strict=True):
        assert torch.equal(found, expected)
    assert any(not torch.equal(*pair) for pair in zip(*snapshots[:2], strict=True))


def test_a_last_step_to_huge_weights_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are finite, and no loss with them is."""
    monkeypatch.setattr(few_shot, "score_batches", lambda *given: (0.0, []))
    module = module_of(skilled(tiny_t5()), lr=1e30, schedule="constant", warmup=0)
    with pytest.raises(DivergedError, match="not finite at step 1"):
        fine_tune(module, [BATCH], [], n_steps=1, eval_every=1)
    assert all(value.isfinite().all() for value in module.parameters())


def test_the_mode_average_trains_what_one_averaged_skill_would_learn(monkeypatch) -> None:
    """Skills with equal weights get equal updates: their average is trained like a single skill.

    Adam divides the third that reaches each skill away, but for its epsilon, which weighs where
    gradients are small. In four steps an entry moves by up to 4e-2: the tolerance is a 400th of it.
    """
    models = skilled(tiny_t5(), n_skills=3).double(), skilled(tiny_t5(), n_skills=1).double()
    averages = {
        name: value.mean(0, keepdim=True) if ".inventory." in name else value
        for name, value in models[0].state_dict().items()
        if not name.startswith("router.")
    }
    models[1].load_state_dict(averages, strict=False)
    start = {name: value.clone() for name, value in averages.items()}
    for model in models:
        monkeypatch.setattr(few_shot, "score_batches", lambda *given, s=[0.0, 1.0]: (s.pop(0), []))
        torch.manual_seed(0)
        one = apply_mode(model, "average").double()
        module = module_of(one, lr=1e-2, weight_decay=0.1)
        fine_tune(module, [BATCH], [], n_steps=4, eval_every=4)
    many, one = (model.state_dict() for model in models)
    for name in (name for name in start if ".inventory." in name):
        torch.testing.assert_close(many[name].mean(0, keepdim=True), one[name], rtol=0, atol=1e-4)
        assert not torch.allclose(one[name], start[name], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_computes_in_half_and_keeps_weights_in_single_precision(monkeypatch, name):
    """Compared with single precision from the same start: close, and not equal."""
    ends, losses = {}, {}
    for kind in ("32-true", name):
        torch.manual_seed(0)
        optim = Adam(kind="adam", lr=1e-3)  # type: ignore[arg-type]
        module = TextToTextModule(skilled(tiny_t5()).eval(), ByT5Tokenizer(), {"new": "EM"}, optim)
        plugin = SINGLE if kind == "32-true" else MixedPrecision(kind, "cpu")  # type: ignore[arg-type]
        with plugin.forward_context():
            losses[kind] = module.nll(BATCH)[0].sum().item()
        torch.manual_seed(1)
        scored = [math.nan, 0.5]
        monkeypatch.setattr(few_shot, "score_batches", lambda *given, s=scored: (s.pop(0), []))
        fine_tune(
            module, [BATCH], [], n_steps=1, eval_every=1, gradient_clip_val=1.0, precision=plugin
        )
        assert {value.dtype for value in module.model.parameters()} == {torch.float32}
        ends[kind] = torch.cat(
            [v.detach().flatten() for v in module.model.parameters() if v.requires_grad]
        )
    # bfloat16 keeps 8 bits of a number: a relative error of 2^-8 per product, less in sums.
    assert losses[name] == pytest.approx(losses["32-true"], rel=0.02)
    assert losses[name] != losses["32-true"]
    assert not torch.equal(ends[name], ends["32-true"])
    # Adam's first step has the size of the learning rate, whatever the gradient's.
    assert (ends[name] - ends["32-true"]).abs().max() <= 2.1e-3
