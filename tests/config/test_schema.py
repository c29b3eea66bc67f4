import re

import pytest
from pydantic import BaseModel

from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.load import load_any_config, load_config
from mttl.config.schema import Config
from mttl.config.section import models_in
from mttl.io.errors import ConfigError


def load(*overrides: str) -> Config:
    return load_config("crossfit.yaml", overrides)


def models(schema: type[BaseModel]) -> set[type[BaseModel]]:
    found = {one for f in schema.model_fields.values() for one in models_in(f.annotation)}
    return {schema}.union(*map(models, found))


def test_the_sections_are_the_contract() -> None:
    assert list(Config.model_fields) == [
        "run", "data", "backbone", "skills", "router", "aggregation", "moe", "heads", "optim",
        "loss", "generation", "adapt", "search", "trainer",
    ]  # fmt: skip


@pytest.mark.parametrize("schema", [Config, BabyAIConfig])
def test_every_setting_is_described_and_every_section_closed(schema: type[BaseModel]) -> None:
    for model in models(schema):
        assert model.__doc__
        assert (model.model_config["extra"], model.model_config["frozen"]) == ("forbid", True)
        fields = model.model_fields.items()
        assert all(name == "kind" or field.description for name, field in fields), model


FUSED = "aggregation.kind=fusion; aggregation.source=x; router.kind=average"
SHARED = "moe.router.kind=top_k; moe.experts.kind=lora; moe.parallel=true"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (f"{FUSED}; router.kind=random", "router.kind must be average with aggregation"),
        (f"{FUSED}; skills.n_heads=2", "skills.n_heads must be 1 with aggregation.kind 'fusion'"),
        (f"{FUSED}; backbone.train=true", "backbone.train must be false with aggregation"),
        (f"{FUSED}; run.start=x", "run.start (x) does not work with aggregation.kind 'fusion'"),
        ("moe.router.kind=top_k; moe.experts.kind=ia3; run.start=x", "with section moe: run.start"),
        ("skills.n_skills=0", "skills.n_skills: '0' must be greater than 0, or be per_task"),
        ("skills.rank='3'", "skills.rank: '3' must be a whole number"),
        ("skills.targets=[]", "skills.targets: '[]' must have at least 1 item"),
        ("optim.label_smoothing=1", "optim.label_smoothing: '1' must be less than 1"),
        ("router.relaxed=false; router.final_temperature=0.1", "final_temperature (0.1) needs"),
        ("skills.scale=0.5; skills.alpha=4; skills.rslora=true", "scale (0.5) cannot be combined"),
        ("skills.init=svd", "skills.init: 'svd' must be one of zero, pissa, orthogonal"),
        ("skills.kind=ia3; optim.up_lr_ratio=16", "optim.up_lr_ratio (16) is only for low-rank"),
        ("adapt.mode=router_only; adapt.up_lr_ratio=16", "up_lr_ratio (16) needs trained skills,"),
        ("router.kind=shared", "skills.n_skills (8) must be 1 with router.kind 'shared'"),
        ("router.kind=private", "skills.n_skills (8) must be 'per_task' with router.kind"),
        ("skills.n_skills=per_task", "skills.n_skills 'per_task' is for the private router, not"),
        ("router.kind=c_poly; router.shared_skill=true", "shared_skill must be false for"),
        ("router.kind=c_poly; router.normalise=average_correction", "normalise must be sum for"),
        ("router.n_private=2", "section 'router' has no setting 'n_private'. It is a setting of"),
        ("router.kind=task_moe; router.top_k=9", "router.top_k (9) must not exceed"),
        ("router.kind=hyperformer; skills.n_heads=4", "'hyperformer': it supports one head"),
        ("data.split=train+dev", "set validation: none or split: train"),
        ("data.split=train+dev; data.validation=none", "set evaluate: [test] or split: train"),
        ("router.relaxed=false; router.temperature=0.5", "temperature (0.5) needs relaxed: true"),
        ("run.seed=4294967296", "run.seed: '4294967296' must be less than 4294967296"),
        ("data.sampler.kind=homogeneous; data.length_window=2", "length_window must be 0 with the"),
        ("data.token_budget=5", "token_budget (5) must be at least 100, the tokens of"),
        ("data.token_budget=8192; data.packed_length=9000", "token_budget (8192) must be at least"),
        ("data.sampler.kind=homogeneous; data.token_budget=8192", "token_budget (8192) does not"),
        ("data.sampler.temperature=3", "temperature (3.0) is for kind temperature"),
        ("data.packed_length=2048; backbone.compile=true", "backbone.compile (true): row"),
        ("data.samples=[100, 100]", "data.samples: [100, 100] must not contain an entry twice"),
        ("data.validation=none; trainer.early_stopping=3", "trainer.early_stopping needs"),
        ("trainer.max_steps=-1", "max_steps or max_epochs must be set, also with max_time,"),
        ("trainer.max_time=7m", "must have the form days:hours:minutes:seconds"),
        ("generation.length_penalty=2", "length_penalty (2.0) needs num_beams above 1"),
        ("optim.warmup=3.5", "optim: warmup (3.5) must be below 1 (a fraction) or a whole number"),
        ("optim.lr=.inf", "optim.lr: 'inf' must be a finite number"),
        ("search.grid={adapt.rl: [1]}", "'adapt.rl' is not a setting that can be searched. Did"),
        ("adapt.examples=9; data.max_rows=8", "adapt.examples (9) must not exceed data.max_rows ("),
        (
            "data.global_batch_size=8; trainer.accumulate_grad_batches=2",
            "(2): data.global_batch_size determines it",
        ),
        ("data.global_batch_size=8; data.token_budget=8192", "data: token_budget (8192) cannot be"),
        ("router.kind=score_function; trainer.strategy=fsdp2", "'score_function': it learns"),
        ("router.kind=random; trainer.strategy=fsdp2", "consistency (1.0): it needs two forward"),
        ("skills.kind=prefix; data.packed_length=2048", "skills.kind 'prefix': these skills"),
        ("skills.kind=prompt; moe.router.kind=top_k; moe.experts.kind=ia3", "'prompt': it adds"),
        ("optim.meta.kind=maml", "data.sampler.kind (proportional) must be homogeneous with"),
        ("optim.meta={kind: reptile, inner_steps: 99}", "data.batch_size (64) must be at least 99"),
        ("optim.meta.kind=maml; data.packed_length=2048", "meta-learning splits batches by rows;"),
        ("optim.meta.kind=maml; data.global_batch_size=8", "each batch has one task; instead of"),
        ("optim.meta.kind=maml; trainer.strategy=fsdp2", "inner steps need unsharded parameters;"),
        ("optim.meta.kind=maml; trainer.precision=16-mixed", "inner steps do not scale losses"),
        ("search.grid={adapt.lr: []}", "must have at least 1 item"),
        ("search.grid={adapt.lr: [1, 1.0]}", "search.grid.adapt.lr: [1, 1.0] must not contain an"),
        ("search.points=[{adapt.lr: 1}]; search.grid={adapt.lr: [1]}", "grid and points cannot"),
        (
            "search.grid={adapt.lr: [1]}; search.ranges={adapt.lr: {low: 1, high: 2}}",
            "and ranges c",
        ),
        ("search.ranges={adapt.lr: {low: 2, high: 1}}", "low (2) must be below high (1)"),
        ("search.ranges={adapt.lr: {low: 0, high: 1, log: true}}", "low (0) must be above 0 where"),
        ("search.trails=3", "Did you mean 'trials'"),
        ("run.name=a/b", "run.name: 'a/b' must be the name of a folder"),
        ("trainer.strategy=fsdp2; trainer.precision=16-mixed", "precision (16-mixed) must be one"),
        ("trainer.strategy=fsdp2; backbone.compile=true", "(true) does not work with trainer.str"),
        ("trainer.strategy=fsdp2; optim.kind=adafactor", "optim.kind 'adafactor': it averages"),
        (
            "trainer.strategy=fsdp2; skills.kind=intrinsic; skills.vector=said",
            "(said): fsdp2 gathers one block",
        ),
        ("trainer.strategy=fsdp2; backbone.quantize=int8", "(int8): set backbone.quantize: nf4"),
        ("backbone.quantize=nf4; backbone.train=true", "quantize ('nf4') needs a frozen backbone;"),
        ("backbone.quantize=nf4; adapt.mode=full", "adapt.mode 'full' trains the backbone, which"),
        ("backbone.quantize=nf3", "'nf3' must be one of"),
        ("backbone.quantize=int8; backbone.gguf_file=a.gguf", "quantize ('int8') cannot be"),
        ("skills.kind=diff_pruning; skills.stretch=[1]", "must have at least 2 items"),
        (f"{SHARED}; trainer.strategy=fsdp2", "trainer.strategy (fsdp2): it shards experts"),
        (f"{SHARED}; trainer.precision=16-mixed", "(16-mixed) does not work with moe.parallel"),
        (f"{SHARED}; optim.kind=adafactor", "with optim.kind 'adafactor': its updates"),
        (f"{SHARED}; backbone.compile=true", "with backbone.compile (true): processes"),
        (f"{SHARED}; optim.meta.kind=maml", "section moe does not work with optim.meta.kind"),
    ],
)
def test_what_is_refused(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(*overrides.split("; "))


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ("router.jitter=0.1", r"moe.router.jitter \(0.1\): its noise changes actions"),
        ("router.kind=noisy_top_k", "kind 'noisy_top_k': its noise changes actions"),
        ("router.kind=gshard", "kind 'gshard': its noise changes actions"),
        ("router.kind=expert_choice", "an action depends on the other frames"),
        ("capacity_factor=1", r"moe \(capacity_factor\): an action depends on the other frames"),
    ],
)
def test_played_actions_are_those_that_are_learned_from(changed: str, refused: str) -> None:
    given = [f"moe.{changed}"]
    with pytest.raises(ConfigError, match=rf"rl \(ppo\) does not work with .*{refused}"):
        load_any_config("babyai.yaml+babyai/moe.yaml", given)
    if "expert_choice" not in changed:  # it needs other settings, too
        load_any_config("babyai.yaml+babyai/moe.yaml", [*given, "rl.demonstrations=x.npz"])


def test_policies_learn_from_no_rows() -> None:
    with pytest.raises(ConfigError, match=r"optim.meta needs text-to-text tasks; remove") as caught:
        load_any_config("babyai.yaml", ["optim.meta.kind=maml", "run.start=x"])
    assert "run.start is only for text-to-text tasks; remove it" in str(caught.value)


def test_what_is_accepted() -> None:
    load("backbone.kind=pretrained", "trainer.strategy=fsdp2", "backbone.quantize=nf4")
    load("skills.kind=intrinsic", "trainer.strategy=fsdp2", "skills.vector=layer")
    load("skills.kind=krona", "skills.shape=[4, 8]")
    load(*SHARED.split("; "))
    load("skills.kind=diff_pruning", "skills.stretch=[-0.1, 1.1]")
