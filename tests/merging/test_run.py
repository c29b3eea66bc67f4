"""Models on disk against the same arithmetic in memory."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BartForConditionalGeneration

from helpers.backbones import fill, tiny_bart
from mttl.aggregation.fisher import elastic_removal, fisher_average
from mttl.aggregation.interpolation import slerp, stock_average
from mttl.aggregation.task_vectors import (
    add_task_vectors,
    drop_and_rescale,
    mask_generator,
    merge_agreeing,
    trim,
)
from mttl.io.errors import CheckpointError, ConfigError
from mttl.merging.recipe import Ingredient, Recipe
from mttl.merging.run import merge_models
from mttl.merging.weights_folder import Weights

Make = Callable[..., Recipe]
BUFFER = "final_logits_bias"  # no parameter, so it has no Fisher information
NAMES = ("base", "good", "bad")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two models tuned from it, on disk in shards, with their Fisher files."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        model = tiny_bart()
        fill(model, seed)
        # Only the base's shards decide about those of the result.
        model.save_pretrained(folder / name, max_shard_size="5GB" if seed else "20KB")
        generator = torch.Generator().manual_seed(seed)
        fisher = {
            tensor: 10 ** (8 * torch.rand(value.shape, generator=generator) - 8)
            for tensor, value in model.named_parameters()
        }
        save_file(fisher, folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def make(models: Path) -> Make:
    """Make a recipe of a method, for both models."""

    def recipe(kind: str, *, fishers: str = "", **method: object) -> Recipe:
        base, good, bad = (
            {"model": str(models / name)}
            | ({"fisher": str(models / f"{name}.safetensors")} if name in fishers else {})
            for name in NAMES
        )
        only_experts = kind in ("fisher_average", "slerp", "model_stock")
        role = {"role": "expert" if only_experts else "anti_expert"}
        given = [good] if kind == "slerp" else [good, bad | role]
        content = {"base": base, "models": given, "method": {"kind": kind, **method}}
        return Recipe.model_validate(content)

    return recipe


def dropped(vector: Tensor, place: int, name: str, spread: float = 0.0) -> Tensor:
    return drop_and_rescale(vector, 0.4, mask_generator(3, place, name), spread)


# What a method does to one tensor: name, θ0, τ of expert and anti-expert, Fisher information.
IN_MEMORY = {
    "arithmetic": lambda n, b, g, a, f: add_task_vectors(b, [g, a], [1.0, -1.0]),
    "cape": lambda n, b, g, a, f: add_task_vectors(b, [g, a], [0.5, -0.5]),
    "elastic": lambda n, b, g, a, f: elastic_removal(
        b, f[0], [g, a], [f[1], f[2]], [1.0, -1.0], base_weight=0.9, ceiling=1e-3
    ),
    "elastic_cape": lambda n, b, g, a, f: elastic_removal(
        b, f[0], [g - a], [f[2]], [0.2], base_weight=0.8, ceiling=1e6
    ),
    "fisher_average": lambda n, b, g, a, f: fisher_average(b, [g, a], [f[1], f[2]], [1.0, 1.0]),
    "ties": lambda n, b, g, a, f: merge_agreeing(
        b, [trim(g, 0.3), trim(-a, 0.3)], [1.0, 1.0], scale=0.7
    ),
    "dare": lambda n, b, g, a, f: add_task_vectors(
        b, [dropped(g, 0, n), dropped(-a, 1, n)], [1.0, 1.0]
    ),
    "dare, ties": lambda n, b, g, a, f: merge_agreeing(
        b, [dropped(g, 0, n), dropped(-a, 1, n)], [1.0, 1.0]
    ),
    "della": lambda n, b, g, a, f: add_task_vectors(
        b, [dropped(g, 0, n, 0.2), dropped(-a, 1, n, 0.2)], [1.0, 1.0]
    ),
    "slerp": lambda n, b, g, a, f: slerp(b, b + g, 0.3),
    "model_stock": lambda n, b, g, a, f: stock_average(b, [g, a]),
}
SETTINGS = {
    "cape": {"weight": 0.5},
    "elastic": {"fishers": "base good bad", "base_weight": 0.9, "ceiling": 1e-3},
    "fisher_average": {"fishers": "good bad"},
    "ties": {"density": 0.3, "scale": 0.7},
    "dare": {"density": 0.4, "seed": 3},
    "dare, ties": {"density": 0.4, "seed": 3, "then": "ties"},
    "della": {"density": 0.4, "seed": 3, "spread": 0.2},
    "slerp": {"weight": 0.3},
}


def settings(kind: str, models: Path) -> dict[str, object]:
    if kind == "elastic_cape":
        return {"fishers": "base", "weight": 0.2, "fisher": str(models / "bad.safetensors")}
    return SETTINGS.get(kind, {})


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_the_result_is_that_of_the_same_arithmetic(kind, make, models, tmp_path) -> None:
    merge_models(make(kind.partition(",")[0], **settings(kind, models)), tmp_path / "out")
    base, good, bad, found = map(Weights, (*(models / name for name in NAMES), tmp_path / "out"))
    fishers = [load_file(models / f"{name}.safetensors") for name in NAMES]
    assert set(found) == set(base)
    for name in base:
        of_tensor = [fisher.get(name, torch.ones_like(base[name])) for fisher in fishers]
        expected = IN_MEMORY[kind](
            name, base[name], good[name] - base[name], bad[name] - base[name], of_tensor
        )
        if name == BUFFER:
            expected = base[name]  # zero in all models
        assert torch.equal(found[name], expected), name


def test_it_is_a_model_and_says_how_it_was_made(make: Make, models: Path, tmp_path: Path) -> None:
    """The same recipe gives the same bytes."""
    found = []
    for out in (tmp_path / "new" / "out", tmp_path / "again"):
        merge_models(make("dare"), out)
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert found[0] == found[1]
    assert found[0].keys() == {*(path.name for path in (models / "base").iterdir()), "merge.yaml"}
    assert b"kind: dare" in found[0]["merge.yaml"]
    model = BartForConditionalGeneration.from_pretrained(tmp_path / "again")
    names = dict(model.named_parameters())
    assert names.keys() == set(Weights(models / "base")) - {BUFFER}


def test_weights_by_patterns(make: Make, models: Path, tmp_path: Path) -> None:
    weights = {"*.decoder.*.fc1.*": 0.0, "*.decoder.*": 0.5}
    tree = make("arithmetic").model_dump(exclude_none=True)
    tree["models"] = [tree["models"][0] | {"weight": weights}]
    merge_models(Recipe.model_validate(tree), tmp_path / "out")
    base, good, found = map(Weights, (models / "base", models / "good", tmp_path / "out"))
    for name in base:
        share = 0.5 if ".decoder." in name and ".fc1." not in name else 0.0
        expected = base[name] + share * (good[name] - base[name])
        torch.testing.assert_close(found[name], expected)
    tree["models"] = [tree["models"][0] | {"weight": {"*.dekoder.*": 0.5}}]
    with pytest.raises(CheckpointError, match=r"weight: '\*.dekoder.\*' fits no tensor of"):
        merge_models(Recipe.model_validate(tree), tmp_path / "wrong")


def test_ties_may_trim_over_all_tensors(make: Make, models: Path, tmp_path: Path) -> None:
    merge_models(make("ties", density=0.1, scope="model"), tmp_path / "out")
    base, good, bad, found = map(Weights, (*(models / name for name in NAMES), tmp_path / "out"))
    vectors = [
        torch.cat([(sign * (model[name] - base[name])).flatten() for name in base])
        for model, sign in ((good, 1), (bad, -1))
    ]
    start = torch.cat([base[name].flatten() for name in base])
    expected = merge_agreeing(start, [trim(vector, 0.1) for vector in vectors], [1.0, 1.0])
    merged = torch.cat([found[name].flatten() for name in base])
    torch.testing.assert_close(merged, expected, rtol=1e-5, atol=1e-6)


def halved(
    tmp_path: Path, base: dict[str, Tensor], tuned: dict[str, Tensor], kind: str = "arithmetic"
) -> Recipe:
    """Add half of what was tuned."""
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned, tmp_path / "tuned.safetensors")
    return Recipe.model_validate(
        {
            "base": {"model": str(tmp_path / "base.safetensors")},
            "models": [{"model": str(tmp_path / "tuned.safetensors"), "weight": 0.5}],
            "method": {"kind": kind},
        }
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_numbers_and_half_precision_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    """Also of a base whose tuned model is kept in single precision."""
    base = {
        "w": torch.randn(9).bfloat16(),
        "ids": torch.arange(3),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    merge_models(halved(tmp_path, base, base), tmp_path / "same")
    written = tmp_path / "same" / "base.safetensors"
    assert written.read_bytes() == (tmp_path / "base.safetensors").read_bytes()
    tuned = {**base, "w": base["w"].to(dtype) + 1.001}
    merge_models(halved(tmp_path, base, tuned), tmp_path / "out")
    found = load_file(tmp_path / "out" / "base.safetensors")
    assert torch.equal(found["ids"], base["ids"])
    change = 0.5 * (tuned["w"].float() - base["w"].float())
    assert torch.equal(found["w"], (base["w"].float() + change).bfloat16())


@pytest.mark.parametrize(
    ("tuned", "message"),
    [
        (torch.full((9,), 2e5), r"'w' would have .* too large for float16"),
        (torch.full((9,), torch.nan), "cannot be merged: "),
    ],
)
@pytest.mark.parametrize("kind", ["arithmetic", "ties"])
def test_values_that_cannot_be_kept_are_refused(tuned, message, kind, tmp_path) -> None:
    recipe = halved(tmp_path, {"w": torch.ones(9).half()}, {"w": tuned}, kind)
    with pytest.raises(CheckpointError, match=message):
        merge_models(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def with_models(recipe: Recipe, *folders: Path, base: Path | None = None) -> Recipe:
    given = [Ingredient(model=str(folder)) for folder in folders]
    start = recipe.base.model_copy(update={"model": str(base)}) if base else recipe.base
    return recipe.model_copy(update={"models": given, "base": start})


def test_all_that_differs_is_listed_and_nothing_is_written(make, models, tmp_path) -> None:
    tensors = dict(Weights(models / "good"))
    names = sorted(name for name in tensors if name.endswith("fc1.weight"))
    del tensors[names[0]]
    tensors["extra"] = torch.ones(1)
    tensors[names[1]] = tensors[names[1]][:-1].clone()
    tensors[names[2]] = tensors[names[2]].long()
    other = tmp_path / "other"
    shutil.copytree(models / "good", other)
    save_file(tensors, other / "model.safetensors")
    config = (other / "config.json").read_text()
    changed = config.replace('"encoder_attention_heads": 4', '"encoder_attention_heads": 2')
    (other / "config.json").write_text(changed.replace('"dropout": 0.0', '"dropout": 0.3'))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError) as refused:
        merge_models(with_models(make("arithmetic"), other, tmp_path / "gone"), tmp_path / "out")
    text = str(refused.value)
    for part in (
        f"missing: {names[0]}",
        "unexpected: extra",
        f"of another shape: {names[1]} (23, 16) instead of (24, 16)",
        f"of another type: {names[2]} int64 instead of float32",
        "different settings: encoder_attention_heads 2 instead of 4",
        f"'{tmp_path / 'gone'}' does not exist",
    ):
        assert part in text, text
    assert "dropout" not in text
    assert sorted(tmp_path.iterdir()) == before


def test_another_vocabulary_or_other_whole_numbers_are_refused(make, models, tmp_path) -> None:
    for name, tokens in (("base", '{"a": 0}'), ("other", '{"a": 1}')):
        folder = tmp_path / name
        shutil.copytree(models / name.replace("other", "good"), folder)
        (folder / "tokenizer.json").write_text(f'{{"model": {{"vocab": {tokens}}}}}')
    for name in ("a", "b"):
        save_file({"ids": torch.tensor([ord(name)])}, tmp_path / f"{name}.safetensors")
    for name, base, message in (
        ("other", "base", "another vocabulary"),
        ("a.safetensors", "b.safetensors", "integers with other values: ids"),
    ):
        recipe = with_models(make("arithmetic"), tmp_path / name, base=tmp_path / base)
        with pytest.raises(CheckpointError, match=message):
            merge_models(recipe, tmp_path / "out")


def test_fisher_information_that_does_not_fit_is_refused(make, models, tmp_path) -> None:
    fisher = load_file(models / "good.safetensors")
    names = sorted(fisher)
    del fisher[names[0]]
    fisher["extra"] = torch.ones(1)
    fisher[names[1]] = fisher[names[1]].flatten()[:-1].clone()
    save_file(fisher, tmp_path / "fisher.safetensors")
    recipe = make("fisher_average", fishers="good bad")
    given = [
        model.model_copy(update={"fisher": str(tmp_path / name)})
        for model, name in zip(recipe.models, ("fisher.safetensors", "gone"), strict=True)
    ]
    with pytest.raises(CheckpointError) as refused:
        merge_models(recipe.model_copy(update={"models": given}), tmp_path / "out")
    text = str(refused.value)
    for part in (
        f"missing: {names[0]}",
        "unexpected: extra",
        f"of another shape: {names[1]}",
        "gone' does not exist",
    ):
        assert part in text, text
    assert not (tmp_path / "out").exists()


def test_a_merge_that_is_stopped_leaves_nothing_and_none_overwrites(make, tmp_path) -> None:
    def stop(done: int, total: int) -> None:
        assert 0 < done <= total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_models(make("arithmetic"), tmp_path / "out", on_tensor=stop)
    assert not list(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        merge_models(make("arithmetic"), tmp_path / "out")
