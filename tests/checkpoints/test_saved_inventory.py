"""The trained inventory on disk: read back bit by bit, or refused with the file and the way out."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ByT5Tokenizer

from helpers.backbones import tiny_t5
from helpers.command import note_again
from helpers.fragments import BESIDES, T5, TASKS, fragments, logits, small, trained
from mttl.adaptation.modes import parts_by_role
from mttl.assembly.model import Built, build_model, inventory_settings, load_run
from mttl.checkpoints.model_tensors import fingerprint
from mttl.checkpoints.saved_inventory import count_saved, load_into, read_inventory
from mttl.config.load import load_config
from mttl.config.schema import Config
from mttl.io import safetensors_file
from mttl.io.errors import CheckpointError, ConfigError
from mttl.models.backbone import build_random

TINY_T5 = "crossfit.yaml+backbone/tiny_t5.yaml"
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1}
FRAGMENTS = [
    fragment
    for fragment in (*fragments("router"), *fragments("skills"))
    # Their matrices are of other tasks; those of members are made of a library.
    if Path(fragment).stem not in ("retrieval", "arrow", "spectral", "phatgoose")
]
FILES = ("skills.safetensors", "router.safetensors", "tasks.json", "meta.json")
AGAIN = "Copy the whole folder again from its origin, or write it again:"


def save(built: Built, config: Config, folder: Path) -> Path:
    """Save as the training command does."""
    built.save_skills(folder / "skills", inventory_settings(config))
    return folder / "skills"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone in a folder, as from the hub."""
    folder = tmp_path_factory.mktemp("backbone")
    settings = {**T5, "vocab_size": 384, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
    build_random("t5", settings).save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved inventory of a random backbone that was trained."""
    config = load_config(TINY_T5, [*small(T5), "skills.rank=2"])
    return save(trained(config)[0], config, tmp_path_factory.mktemp("original"))


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "skills"))


def frozen(pretrained: Path) -> list[str]:
    return ["backbone.kind=pretrained", f"backbone.name={pretrained}"]


HYBRID = "router/token_hybrid.yaml+experts/adapter.yaml"
ROUND_TRIPS = [
    *((fragment, [*small(T5), *BESIDES.get(fragment, [])]) for fragment in FRAGMENTS),
    ("backbone/tiny_llama.yaml", small(LLAMA)),
    ("backbone/tiny_t5.yaml", [*small(T5), "backbone.train=false"]),
    ("skills/lora.yaml", [*small(T5), "skills.mix=outputs", "router.granularity=block"]),
    ("skills/lora.yaml", [*small(T5), "skills.n_heads=2", "router.shared_skill=true"]),
    ("router/hyperformer.yaml", [*small(T5), "router.embedding_size=3"]),
    ("router/token_top2.yaml+backbone/tiny_llama.yaml", small(LLAMA)),
    ("router/token_switch.yaml+experts/feed_forward.yaml", small(T5)),
    (HYBRID, [*small(T5), "moe.shared_expert=true", "skills.targets=[attention, mlp]"]),
    ("router/token_prior.yaml+experts/ia3.yaml", small(T5)),
]


@pytest.mark.every(4)
@pytest.mark.parametrize(("fragment", "overrides"), ROUND_TRIPS)
def test_what_is_saved_reads_back_bit_by_bit(fragment, overrides, tmp_path) -> None:
    config = load_config(f"{TINY_T5}+{fragment}", overrides)
    built, before = trained(config)
    expected = logits(built)
    assert not torch.equal(expected, before)  # otherwise an untrained model would do
    skills = save(built, config, tmp_path)
    assert {path.name for path in skills.iterdir()} == {*FILES, "backbone.safetensors"}
    parts = parts_by_role(built.model)["skills"]
    own = {parameter for part in parts for parameter in part.parameters()}  # shared ones once
    assert count_saved(skills / "skills.safetensors") == sum(value.numel() for value in own)
    torch.manual_seed(1234)  # other random weights
    loaded = load_run(tmp_path)
    assert loaded.tasks == TASKS
    assert loaded.attachment == built.attachment
    assert not any(module.training for module in loaded.model.modules())
    assert torch.equal(loaded.model.router.matrix(), built.model.router.matrix())
    assert torch.equal(logits(loaded), expected)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_earlier_inventory_is_replaced_as_a_whole(saved: Path, pretrained: Path) -> None:
    config = load_config(TINY_T5, frozen(pretrained))
    built, _ = trained(config)
    save(built, config, saved.parent)
    assert set(content(saved)) == set(FILES)  # no backbone left from the earlier one
    assert torch.equal(logits(load_run(saved)), logits(built))
    assert [path.name for path in saved.parent.iterdir()] == ["skills"]


@pytest.mark.parametrize("at", ["skills", "router", "backbone"])
def test_an_interrupted_write_leaves_the_earlier_one(at, saved, monkeypatch) -> None:
    def interrupted(tensors: dict[str, Tensor], path: Path, metadata: None) -> None:
        if f".{at}.safetensors" in path.name:
            path.write_bytes(b"half of the")
            raise KeyboardInterrupt
        save_file(tensors, path, metadata)

    before = content(saved)
    run = load_run(saved)
    monkeypatch.setattr(safetensors_file, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(run, load_config(TINY_T5, small(T5)), saved.parent)
    assert content(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["skills"]


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_run(folder)
    return str(caught.value)


def flipped(data: bytes) -> bytes:
    """Change a bit in the last third: of tensors, of the last task's name, of a setting."""
    at = len(data) * 2 // 3
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damaged(data: bytes) -> list[bytes]:
    return [data[: len(data) * 3 // 4], b"\xff\xfe" + data, b"", flipped(data)]


@pytest.mark.parametrize("name", [*FILES, "backbone.safetensors"])
def test_a_damaged_file_is_named(name: str, saved: Path) -> None:
    path = saved / name
    content = path.read_bytes()
    for change in damaged(content):
        path.write_bytes(change)
        message = refused(saved)
        if name == "meta.json":  # what is wrong depends on the byte
            assert str(path) in message
        else:
            assert f"'{path}' is damaged (its checksum has changed). {AGAIN}" in message
    path.unlink()
    if name != "meta.json":
        assert re.search(rf"'{path}' (is missing|does not exist).* copy", refused(saved), re.I)


def test_what_is_not_finite_is_refused(saved: Path) -> None:
    path = saved / "skills.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] = torch.nan
    save_file(tensors, path)
    note_again(saved)
    assert f"'{name}' has values that are not finite" in refused(saved)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({"format_version": 2}, ["has no facts of format 1. Use the version"]),
        ({"format_version": None}, ["has no facts of format 1. Use the version"]),
        (
            {"settings": {"rnk": 3}},
            [
                "has settings that this version of mttl does not know. Use the",
                "that wrote it (0.1.0)",
                "rnk",
            ],
        ),
    ],
)
def test_facts_of_another_version(change: dict, messages: list[str], saved: Path) -> None:
    meta = json.loads((saved / "meta.json").read_text("utf-8"))
    for key, value in change.items():
        meta[key] = meta[key] | value if isinstance(value, dict) else value
    (saved / "meta.json").write_text(json.dumps(meta), "utf-8")
    note_again(saved)
    message = refused(saved)
    assert [part for part in messages if part not in message] == []


def state(built: Built) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in built.model.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_problems_are_listed_by_cause_and_nothing_is_copied(saved: Path) -> None:
    larger = load_config(TINY_T5, [*small({**T5, "d_ff": 32}), "skills.rank=2"])
    built = build_model(larger, TASKS)
    before = state(built)
    with pytest.raises(CheckpointError, match="trained on the backbone 'random t5'") as caught:
        load_into(built.model, read_inventory(saved))
    assert str(saved) in str(caught.value)
    assert same(state(built), before)

    path = saved / "skills.safetensors"
    tensors = load_file(path)
    first, second, *others = sorted(tensors)
    tensors["stranger"] = tensors.pop(first)
    tensors[second] = torch.zeros(2, 3)
    for name in others[:6]:
        del tensors[name]
    save_file(tensors, path)
    router = load_file(saved / "router.safetensors")
    save_file({"logits": router["logits"]}, saved / "router.safetensors")
    note_again(saved)
    built = build_model(load_config(TINY_T5, [*small(T5), "skills.rank=2"]), TASKS)
    before = state(built)
    with pytest.raises(CheckpointError) as caught:
        load_into(built.model, read_inventory(saved))
    assert same(state(built), before)
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"'{saved}' does not fit the model:"
    assert len(lines) == 4
    assert lines[0].startswith(f"skills, missing: {first}, ")
    assert lines[0].endswith(" and 2 more")
    assert lines[1] == "skills, unexpected: stranger"
    assert lines[2].startswith(f"skills, of another shape: {second} (2, 3) instead of (")
    assert lines[3] == "router, missing: temperature"


def test_a_fingerprint_knows_names_shapes_and_values() -> None:
    model = tiny_t5()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    first = next(iter(parameters))
    changed = {**parameters, first: parameters[first] * 2}
    reshaped = {**parameters, first: parameters[first].T}
    renamed = {f"{name}s": value for name, value in parameters.items()}
    half = {name: value.bfloat16() for name, value in parameters.items()}
    whole = fingerprint(parameters, values=True)
    assert whole == fingerprint(dict(reversed(parameters.items())), values=True)
    assert whole == fingerprint(half, values=True)
    assert whole != fingerprint(changed, values=True)
    assert whole != fingerprint(renamed, values=True)
    shapes = fingerprint(parameters, values=False)
    assert shapes == fingerprint(changed, values=False)
    assert shapes != fingerprint(reshaped, values=False)
    assert shapes != fingerprint(renamed, values=False)


def test_a_run_finds_its_backbone_from_another_directory(tmp_path, pretrained, monkeypatch) -> None:
    """Trained where the folder was named as `models/base`, used where it is not."""
    shutil.copytree(pretrained, tmp_path / "models" / "base")
    monkeypatch.chdir(tmp_path)
    overrides = ["backbone.kind=pretrained", "backbone.name=models/base"]
    config = load_config(TINY_T5, overrides)
    skills = save(build_model(config, TASKS), config, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    load_run(skills)
    (tmp_path / "models").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"backbone\.name \('models/base'\)"):
        load_run(skills)
    load_run(skills, backbone=tmp_path / "moved" / "base")
