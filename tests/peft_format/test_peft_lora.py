"""peft loads an exported task and answers as it does; adapters of peft become skills."""

import pytest
import torch

from helpers.backbones import BACKBONES, batch, fill, tiny_t5
from helpers.compare import relative_error
from helpers.skills import Twice, filled, skilled, skilled_at
from mttl.io.errors import CheckpointError
from mttl.library.stacking import stack_members
from mttl.merging import low_rank_factors
from mttl.merging.fold import average_mixing, skill_mixing, task_mixing
from mttl.peft_format.peft_folder import of_base, read_peft, write_peft
from mttl.peft_format.peft_lora import (
    common_scaling,
    common_settings,
    lora_adapter,
    mixture_adapter,
    read_lora,
)
from mttl.routing import AverageRouter, PrivateRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills

peft = pytest.importorskip("peft")

# Both sides do the same float32 arithmetic in another order, through two to four blocks.
ROUNDING = 1e-5
TASK_TYPES = {"t5": "SEQ_2_SEQ_LM", "bart": "SEQ_2_SEQ_LM", "llama": "CAUSAL_LM"}
TASK_TYPES["gpt2"] = "CAUSAL_LM"
TARGETS = {
    "t5": ["q", "v", "wo"],
    "bart": ["q_proj", "v_proj", "fc1"],
    "llama": ["q_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj"],
}


def export(model, mixing, folder, family, rank=None):
    adapter = mixture_adapter(model, mixing, rank)
    config, tensors = lora_adapter(
        adapter, transposed=family == "gpt2", scaling=common_scaling(model)
    )
    write_peft(folder, config | of_base(None, TASK_TYPES[family]), tensors)
    return adapter


def loaded(family, folder):
    return peft.PeftModel.from_pretrained(BACKBONES[family](), folder).eval()


PAIRS = [
    (family, mix, 1 + (number + place) % 2)
    for number, family in enumerate(BACKBONES)
    for place, mix in enumerate(("factors", "deltas", "outputs"))
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("family", "mix", "n_heads"), PAIRS)
def test_peft_answers_as_the_task(family, mix, n_heads, tmp_path):
    model = skilled(BACKBONES[family](), inventory=f"lora-{mix}", n_heads=n_heads)
    for task in (0, 2):
        folder = tmp_path / str(task)
        adapter = export(model, task_mixing(model.router, task), folder, family)
        assert {part.rank for part in adapter.values()} == {2 if mix == "factors" else 6}
        theirs = loaded(family, folder)
        found = theirs(**batch(3)).logits
        expected = model(torch.full((3,), task), **batch(3)).logits
        assert relative_error(found, expected) < ROUNDING
        with theirs.disable_adapter():
            assert relative_error(theirs(**batch(3)).logits, expected) > 0.1
        # Exactly the skilled layers carry an adapter.
        adapted = {name.removeprefix("base_model.model.") for name, layer in theirs.named_modules()
                   if hasattr(layer, "lora_A")}  # fmt: skip
        assert adapted == set(model.skilled_layers())


def test_the_average_and_single_skills_are_mixtures_too(tmp_path):
    model = skilled(tiny_t5(), inventory="lora-deltas")
    router = model.router
    for name, mixing, same, task in (
        ("mean", average_mixing(router), AverageRouter(router.n_groups, 1, 1, 3), 0),
        ("one", skill_mixing(router, 1), PrivateRouter(router.n_groups, 3), 1),
    ):
        adapter = export(model, mixing, tmp_path / name, "t5")
        assert {part.rank for part in adapter.values()} == {6 if name == "mean" else 2}
        model.router = same
        expected = model(torch.full((3,), task), **batch(3)).logits
        assert relative_error(loaded("t5", tmp_path / name)(**batch(3)).logits, expected) < ROUNDING
    with pytest.raises(CheckpointError, match="there is no skill 3; skills have numbers 0 … 2"):
        skill_mixing(router, 3)


def test_truncation_reports_what_it_loses(tmp_path):
    model = skilled(tiny_t5(), inventory="lora-deltas")
    mixing = task_mixing(model.router, 1)
    adapter = export(model, mixing, tmp_path, "t5", rank=3)
    lost = whole = 0.0
    for path, layer in model.skilled_layers().items():
        change = layer.inventory.delta(mixing[layer.group][None])[0].detach()
        lost += float((adapter[path].up @ adapter[path].down.t() - change).square().sum())
        whole += float(change.square().sum())
    # Squared errors of float32 factors of a change of norm about 1.
    error = low_rank_factors.relative_error(list(adapter.values()))
    assert error == pytest.approx((lost / whole) ** 0.5, rel=1e-4)
    expected = model(torch.full((3,), 1), **batch(3)).logits
    assert relative_error(loaded("t5", tmp_path)(**batch(3)).logits, expected) > ROUNDING


def test_scales_and_a_layer_at_two_paths_are_refused():
    model = skilled(tiny_t5(), inventory="ia3")
    with pytest.raises(CheckpointError, match=r"cannot be exported as LoRA: IA3Inventory does not"):
        mixture_adapter(model, task_mixing(model.router, 0), 4)

    twice = skilled_at(Twice(), "first")
    with pytest.raises(CheckpointError, match="'second' has several names"):
        mixture_adapter(twice, average_mixing(twice.router))


SETTINGS = {
    "plain": {"r": 4, "lora_alpha": 8},
    "rank stabilised": {"r": 2, "lora_alpha": 3, "use_rslora": True},
    "by layer": {
        **{"r": 2, "lora_alpha": 4, "rank_pattern": {"0.*": 3}},
        "alpha_pattern": {r".*\.1\..*": 1},
    },
}


def adapter_of_peft(folder, family, seed, targets, **settings):
    """Save an adapter, and return its logits."""
    settings |= {"fan_in_fan_out": family == "gpt2", "task_type": TASK_TYPES[family]}
    config = peft.LoraConfig(**settings, target_modules=targets)
    model = peft.get_peft_model(BACKBONES[family](), config)
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            fill(layer.lora_A, seed)
            fill(layer.lora_B, seed + 7)
    model.save_pretrained(folder)
    return model.eval()(**batch(3)).logits


@pytest.mark.parametrize("family", BACKBONES)
def test_adapters_become_skills(family, tmp_path):
    expected, adapters = [], []
    for number, (name, settings) in enumerate(SETTINGS.items()):
        targets = TARGETS[family][: number + 1]
        expected.append(adapter_of_peft(tmp_path / name, family, number, targets, **settings))
        adapters.append(read_lora(read_peft(tmp_path / name)))
    layers = stack_members(adapters)
    backbone, slot = BACKBONES[family](), RoutingSlot()
    rank = next(iter(layers.values()))[0].shape[2]
    assert rank == 4
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, 3, rank=rank, scale=1.0, mix="outputs"),
        targets=list(layers),
        slot=slot,
    )
    model = SkilledModel(backbone, PrivateRouter(len(attachment.groups), 3), slot).eval()
    with torch.no_grad():
        for path, layer in model.skilled_layers().items():
            layer.inventory.down.copy_(layers[path][0])
            layer.inventory.up.copy_(layers[path][1])
    for skill, logits in enumerate(expected):
        found = model(torch.full((3,), skill), **batch(3)).logits
        assert relative_error(found, logits) < ROUNDING


OPTIONS = {"alpha": 6.0, "rslora": True, "dropout": 0.25}


def read_with(folder, **changed):
    settings = {"r": 2, "lora_alpha": 6, "use_rslora": True, "lora_dropout": 0.25} | changed
    adapter_of_peft(folder, "t5", 1, TARGETS["t5"], **settings)
    return read_peft(folder)


def with_options(n_skills=1, **settings):
    backbone, slot = tiny_t5(), RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: filled(LoRAInventory(i, o, n_skills, rank=2, **settings)),
        targets=TARGETS["t5"],
        slot=slot,
    )
    router = AverageRouter(len(attachment.groups), 1, 1, n_skills)
    return SkilledModel(backbone, router, slot).eval()


def test_options_come_in_where_adapters_are_set_alike(tmp_path):
    folders = [read_with(tmp_path / name) for name in "ab"]
    assert common_settings(folders) == OPTIONS
    plain, scaled = (read_lora(folders[0], scaled=scaled) for scaled in (False, True))
    for path, part in plain.items():
        torch.testing.assert_close(6 / 2**0.5 * part.up, scaled[path].up)
    for number, changed in enumerate(
        ({"r": 3}, {"lora_alpha": 5}, {"use_rslora": False}, {"lora_dropout": 0.1},
         {"alpha_pattern": {"q": 3}}, {"rank_pattern": {"q": 1}})
    ):  # fmt: skip
        assert common_settings([*folders, read_with(tmp_path / str(number), **changed)]) is None


@pytest.mark.parametrize("n_skills", [1, 3])
def test_options_go_out(tmp_path, n_skills):
    """Also those of several skills side by side, whose rank is another."""
    model = with_options(n_skills, mix="outputs", **OPTIONS)
    export(model, average_mixing(model.router), tmp_path / "out", "t5")
    theirs = loaded("t5", tmp_path / "out")
    config = theirs.peft_config["default"]
    assert (config.r, config.use_rslora, config.lora_dropout) == (2 * n_skills, True, 0.25)
    assert config.lora_alpha == pytest.approx(6 * n_skills**0.5)
    expected = model(torch.zeros(3, dtype=torch.long), **batch(3)).logits
    assert relative_error(theirs(**batch(3)).logits, expected) < ROUNDING
    # It is trained on as here: the same draws, the same loss and gradients.
    if n_skills == 1:
        losses = []
        for trained in (model, theirs):
            torch.manual_seed(2)
            ids = {"task_ids": torch.zeros(3, dtype=torch.long)} if trained is model else {}
            losses.append(trained.train()(**ids, **batch(3)).loss)
        torch.testing.assert_close(*losses, rtol=ROUNDING, atol=0)


@pytest.mark.parametrize(
    ("make", "rank", "found"),
    [
        # With what is subtracted from the weight that they start from.
        (lambda: with_options(2, init="orthogonal", mix="outputs"), None, 8),
        # All there is: 16 features.
        (lambda: skilled(tiny_t5(), inventory="dense-deltas", targets=["q"]), 16, 16),
    ],
)
def test_skills_that_are_no_pairs_of_factors_go_out(make, rank, found, tmp_path):
    model = make()
    export(model, task_mixing(model.router, 0), tmp_path, "t5", rank=rank)
    theirs = loaded("t5", tmp_path)
    assert theirs.peft_config["default"].r == found
    expected = model(torch.zeros(3, dtype=torch.long), **batch(3)).logits
    assert relative_error(theirs(**batch(3)).logits, expected) < ROUNDING
