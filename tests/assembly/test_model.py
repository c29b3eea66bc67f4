"""From configurations to objects: settings arrive where they belong, and mistakes name them."""

import re
from pathlib import Path

import pytest
import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from transformers import ByT5Tokenizer

from helpers.backbones import tiny_bart
from mttl.assembly.build_router import build_router, read_expert_matrix
from mttl.assembly.model import Built, build_model
from mttl.config.load import load_config
from mttl.config.skills_schema import router_section
from mttl.io.errors import ConfigError
from mttl.models.backbone import is_decoder_only
from mttl.routing import PolytroponRouter
from mttl.skills import SkilledModel
from mttl.training.optim import build_optimizer

TINY_T5 = "crossfit.yaml+backbone/tiny_t5.yaml"
TASKS = ("verb_past", "noun_plural", "ordinal")
TINY = [
    f"backbone.config.{name}={value}"
    for name, value in {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1}.items()
]


def build(fragment: str = "", *overrides: str) -> Built:
    names = f"{TINY_T5}+{fragment}" if fragment else TINY_T5
    return build_model(load_config(names, [*TINY, *overrides]), TASKS)


@pytest.mark.parametrize(("name", "decoder_only"), [("tiny_t5", False), ("tiny_llama", True)])
def test_shipped_random_backbones_build(name: str, decoder_only: bool) -> None:
    built = build_model(load_config(f"crossfit.yaml+backbone/{name}.yaml"), TASKS)
    assert is_decoder_only(built.model.backbone) == decoder_only
    assert built.model.training
    assert all(parameter.requires_grad for parameter in built.model.parameters())
    size = sum(parameter.numel() for parameter in built.model.backbone.parameters())
    assert 5e5 < size < 5e6


@pytest.mark.parametrize("kind", ["random", "pretrained"])
def test_only_the_first_process_of_a_sharded_run_has_the_weights_of_the_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bart = tiny_bart()
    bart.resize_token_embeddings(len(ByT5Tokenizer()), mean_resizing=False)
    bart.save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    names = {"random": TINY_T5, "pretrained": "crossfit_paper.yaml"}
    own = {"random": TINY, "pretrained": [f"backbone.name={tmp_path}"]}

    def build_with(strategy: str) -> SkilledModel:
        settings = [*own[kind], f"trainer.strategy={strategy}"]
        return build_model(load_config(names[kind], settings), TASKS).model

    first = build_with("fsdp2")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert {value.device.type for value in build_with("ddp").parameters()} == {"cpu"}
    (tmp_path / "model.safetensors").unlink()  # nor does another process read them
    model = build_with("fsdp2")
    assert {value.device.type for value in model.router.parameters()} == {"cpu"}
    shapes = [
        {name: value.shape for name, value in built.named_parameters()} for built in (first, model)
    ]
    assert shapes[0] == shapes[1]
    for name, value in model.named_parameters():
        assert (value.device.type == "cpu") == name.startswith("router."), name
    assert {value.device.type for value in first.parameters()} == {"cpu"}


def test_patterns_choose_which_parameters_of_the_backbone_are_trained() -> None:
    patterns = "[layer_norm.weight, decoder.block.1.*, 'SelfAttention.[qv].weight']"
    config = load_config(TINY_T5, [f"backbone.train={patterns}"])
    model = build_model(config, ["one", "two"]).model
    names = {
        name.replace(".base.", "."): value.requires_grad
        for name, value in model.backbone.named_parameters()
        if ".inventory." not in name
    }
    chosen = {name for name, trained in names.items() if trained}
    assert chosen == {
        name
        for name in names
        if name.endswith(".layer_norm.weight")
        or name.startswith("decoder.block.1.")
        or name.endswith(("SelfAttention.q.weight", "SelfAttention.v.weight"))
    }
    assert 0 < len(chosen) < len(names)
    groups = build_optimizer(config.optim, model).param_groups
    backbone = [group for group in groups if group["name"].startswith("backbone")]
    assert sum(len(group["params"]) for group in backbone) == len(chosen)


@pytest.mark.parametrize("kind", ["smear", "retrieval"])
def test_routers_that_read_have_room_for_what_they_see(kind: str) -> None:
    router = build_router(router_section(kind), 2, ["a", "b"], 1, 3, n_features=5)
    assert router.state_dict()["shown_examples"].shape == (2, 5)


def test_the_settings_of_a_router_arrive() -> None:
    settings = "relaxed=false init_scale=0.5 normalise=average_correction prior.sparsity=0.1"
    given = [f"router.{one}" for one in (*settings.split(), "granularity=model")]
    router = build("", *given, "router.prior.ibp={alpha: 3.0, weight: 0.4}").model.router
    assert isinstance(router, PolytroponRouter)
    found = router.relaxed, router.init_scale, router.normalise
    assert found == (False, 0.5, "average_correction")
    assert (router.n_groups, router.prior.sparsity) == (1, 0.1)
    assert (router.prior.ibp.alpha, router.prior.ibp.weight) == (3.0, 0.4)


def test_the_settings_of_optimizers_arrive() -> None:
    model = build().model
    override = ["optim.betas=[0.7, 0.8]", "optim.eps=1e-5", "optim.weight_decay=0.3"]
    for kind in (torch.optim.AdamW, torch.optim.Adam):
        fragment = f"optim/{kind.__name__.lower()}.yaml"
        config = load_config(f"{TINY_T5}+{fragment}", override)
        optimizer = build_optimizer(config.optim, model)
        assert type(optimizer) is kind
        assert optimizer.defaults["betas"] == (0.7, 0.8)
        assert optimizer.defaults["eps"] == 1e-5
        assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
        assert {group["lr"] for group in optimizer.param_groups} == {2e-3, 2e-2}
    override = ["optim.beta2_decay=-0.5", "optim.clip_threshold=2.0"]
    config = load_config(f"{TINY_T5}+optim/adafactor.yaml", override)
    optimizer = build_optimizer(config.optim, model)
    assert type(optimizer) is torch.optim.Adafactor
    assert (optimizer.defaults["beta2_decay"], optimizer.defaults["d"]) == (-0.5, 2.0)


@pytest.mark.parametrize(
    ("fragment", "override", "message"),
    [
        ("", "backbone.config.vocab_size=300", "backbone.tokenizer ('byte') has 384 tokens, but"),
        ("", "skills.n_heads=3", "SelfAttention.q': n_heads (3) must divide"),
        ("skills/ia3.yaml", "skills.targets=[wi_9]", "section skills: the target 'wi_9' matches"),
        ("", "backbone.initial_scale={'*.nowhere': 2.0}", "backbone.initial_scale: '*.nowhere'"),
        ("", "backbone.train=[layer_norms.weight]", "backbone.train: 'layer_norms.weight' matches"),
        ("", "backbone.tokenizer=./nowhere", "backbone.tokenizer ('./nowhere') is neither a"),
        ("router/expert.yaml", "router.matrix=nowhere.csv", "'nowhere.csv' does not exist"),
        ("router/expert.yaml", "router.matrix=expert_lexical", "Did you mean 'router/expert_lex"),
        (
            "router/expert.yaml",
            "skills.n_skills=8",
            "section router (expert): 'router/expert_lexical.csv'",
        ),
        ("router/retrieval.yaml", "router.top_k=1", "'retrieval': it needs trained members of a"),
        ("router/arrow.yaml", "run.seed=1", "'arrow': it needs trained members of a library. Make"),
        ("router/token_example.yaml", "moe.stacks=[decoder]", "cannot route a causal decoder"),
        ("router/token_top2.yaml", "moe.stacks=[model]", "stacks: this backbone has no 'model'"),
        ("router/token_top2.yaml", "moe.targets=[wrong]", "section moe: the target 'wrong' match"),
        # A backbone that is missing is not blamed on the tokenizer.
        ("", "backbone.kind=pretrained; backbone.name=./nowhere", "Give a folder that"),
    ],
)
def test_what_cannot_be_built(fragment: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(fragment, *override.split("; "))


def matrix(folder: Path, content: str | bytes) -> str:
    path = folder / "matrix.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_rows_are_returned_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    content = "task,a,b\nordinal,1,0\nverb_past,0.5,2\nmore,0,0\nnoun_plural,0,1\n"
    expected = [[0.5, 2.0], [0.0, 1.0], [1.0, 0.0]]
    assert read_expert_matrix(matrix(tmp_path, content), TASKS, 2).tolist() == expected
    # Spreadsheets write a byte-order mark, and end lines as Windows does.
    content = b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode()
    assert read_expert_matrix(matrix(tmp_path, content), TASKS, 2).tolist() == expected


HEADER = "must have the columns task, each once"
WEIGHTS = ": the weights of 'b' must be at least 0, and one above 0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", HEADER),
        ("name,x\na,1\n", HEADER),
        ("task\na\nb\n", "the weights of 'a' must be at least 0"),
        ("task,x,y\na,1,0\nb,1,much\n", "a weight of 'b' is \"much\"; it must be a number"),
        ("task,x\na,1\na,2\n", "has two rows for 'a'"),
        ("task,x\na,1\nbb,1\n", "has no row for the task 'b'. Did you mean 'bb'?"),
        ("task,x,y\na,1,0\nb,1,-1\n", WEIGHTS),
        ("task,x,y\na,1,0\nb,nan,1\n", WEIGHTS),
        ("task,x,y\na,1,0\nb,inf,1\n", "a weight of 'b' is \"inf\"; it must be a number"),
        ("task,x,y\na,1,0\nb,0,0\n", WEIGHTS),
    ],
)
def test_mistakes_in_a_matrix(content: str, message: str, tmp_path: Path) -> None:
    path = matrix(tmp_path, content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_expert_matrix(path, ("a", "b"), 2)
    assert path in str(caught.value)
