"""The section moe: what it builds, and what it refuses."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from mttl.assembly.model import Built, build_model
from mttl.assembly.trainer import build_trainer
from mttl.checkpoints.run_folder import RunFolder
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.moe.layer import SharedExpert
from mttl.routing.token.top_k import TopKRouter

TINY_T5 = "crossfit.yaml+backbone/tiny_t5.yaml"
SMALL = [
    *("backbone.config.d_model=16", "backbone.config.d_kv=4", "backbone.config.d_ff=24"),
    *("backbone.config.num_heads=2", "moe.n_experts=4"),
]
TOP2 = f"{TINY_T5}+router/token_top2.yaml"


def build(names: str = TOP2, *overrides: str) -> Built:
    return build_model(load_config(names, [*SMALL, *overrides]), ["a", "b", "c", "d"])


def test_the_settings_of_a_router_arrive_and_a_bias_balances_without_a_loss() -> None:
    built = build(TOP2, "moe.router.jitter=0.1", "moe.router.top_k=3", "moe.capacity_factor=1.5")
    for layer in built.model.token_layers().values():
        assert isinstance(layer.router, TopKRouter)
        assert (layer.router.top_k, layer.router.jitter, layer.router.normalise) == (3, 0.1, True)
        assert (layer.capacity_factor, layer.eval_capacity_factor) == (1.5, None)
        assert layer.router.balance is not None
    assert built.token_layers is not None
    assert len(built.token_layers.layers) == 36
    assert built.attachment.groups == ()
    assert built.model.router.n_groups == 0
    built = build(f"{TINY_T5}+router/token_loss_free.yaml")
    router = next(iter(built.model.token_layers().values())).router
    assert router.bias is not None
    assert router.balance is None


def test_places_and_a_shared_expert() -> None:
    settings = "moe.every=2", "moe.stacks=[decoder]", "moe.shared_expert=true"
    built = build(f"{TOP2}+experts/feed_forward.yaml", *settings)
    (path, layer), *others = built.model.token_layers().items()
    assert path == "decoder.block.1.layer.2.DenseReluDense"
    assert not others
    assert layer.base is None
    assert isinstance(layer.shared, SharedExpert)
    assert not layer.shared.experts.down.any()


@pytest.mark.parametrize("name", ["KronA", "BitFit", "Dense", "Sparse", "Intrinsic"])
def test_other_kinds_are_experts_by_the_path_of_their_class(name: str) -> None:
    path = f"mttl.skills.weights.{name.lower()}:{name}Inventory"
    model = build(TOP2, f"moe.experts.kind={path}", "moe.stacks=[decoder]").model
    layers = model.token_layers().values()
    assert layers
    assert {type(layer.experts).__name__ for layer in layers} == {f"{name}Inventory"}
    ids = torch.tensor([[3, 4, 5]])
    model(torch.tensor([1]), input_ids=ids, labels=ids).loss.backward()
    trained = [p.grad for layer in layers for p in layer.experts.parameters()]
    assert any(gradient is not None and gradient.any() for gradient in trained)


def test_rows_of_tasks_have_groups_of_their_own() -> None:
    built = build(f"{TINY_T5}+router/token_prior.yaml", "router.granularity=block")
    assert len(built.attachment.groups) == 4
    assert built.model.router.n_skills == 4
    both = build(f"{TINY_T5}+router/token_hybrid.yaml", "skills.n_skills=5")
    assert len(both.attachment.groups) == 24
    assert len(both.model.token_layers()) == 12


def test_numbers_of_experts_by_layer() -> None:
    at = 'moe.n_experts_at={"encoder.*.wi_?": 2, "*.block.0.*": 3}'
    layers = build(TOP2, at).model.token_layers()
    for path, layer in layers.items():
        first = 3 if ".block.0." in path else 4
        assert layer.router.n_experts == (2 if re.search(r"encoder.*wi_", path) else first)
    assert {layer.router.n_experts for layer in layers.values()} == {2, 3, 4}
    with pytest.raises(ConfigError, match=r"section moe: n_experts_at: 'nowhere' matches no layer"):
        build(TOP2, "moe.n_experts_at={nowhere: 2}")


def test_a_loss_prefers_the_experts_of_a_task(tmp_path: Path) -> None:
    """LoRAMoE: the other outputs of the layers are those without preferences."""
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("task,one,two,three,four\na,1,1,0,0\nb,1,0,0,0\nc,0,0,1,1\nd,0,1,0,1\n")
    given = (
        f"{TINY_T5}+router/token_loramoe.yaml",
        "moe.router.top_k=4",
        f"router.matrix={matrix}",
    )
    found = {}
    for delta in (0.0, 0.5):
        torch.manual_seed(0)
        model = build(*given, f"moe.balance.delta={delta}").model
        for layer in model.token_layers().values():
            torch.nn.init.normal_(layer.router.weight)
        ids = torch.tensor([[3, 4, 5], [6, 7, 0], [3, 5, 7]])
        routing = model.route(torch.tensor([0, 2, 1]))
        with model.slot.use(routing):
            model.backbone(input_ids=ids, labels=ids, attention_mask=ids > 0)
        found[delta] = routing.losses["localised"]
    found[0.5].backward()
    assert all(layer.router.weight.grad.any() for layer in model.token_layers().values())
    assert not torch.equal(found[0.0], found[0.5])


NONSENSE = [
    ("polytropon", "skills.kind=none", "skills.kind 'none' needs a section moe"),
    ("polytropon", "router.kind=none", "router.kind 'none' gives skills (skills.kind 'lora')"),
    ("token_top2", "router.kind=polytropon", "router.kind 'polytropon' has no skills to route"),
    ("token_top2", "moe.task_prior=logits", "with router.kind 'none': it has equal weights"),
    ("token_prior", "router.kind=categorical", "it allows one expert per task"),
    ("token_prior", "router.kind=c_poly", "it gives each task private skills"),
    ("token_top2", "moe.router.top_k=9", "router.top_k (9) must not exceed n_experts (8)"),
    ("token_top2", "moe.router.top_k=1", "with normalise and top_k 1 every gate is 1"),
    ("token_top2", "moe.balance.load=0.1", "set moe.router.kind: noisy_top_k"),
    ("token_top2", "moe.balance.switch=0; moe.balance.global_statistics=true", "needs a loss over"),
    ("token_top2.yaml+experts/ia3", "moe.shared_expert=true", "shared_expert does not work with"),
    ("token_gshard", "moe.balance.bias=0.1", "set moe.router.kind: top_k or switch"),
    ("token_hash", "moe.balance.switch=0.1", "moe.router.kind 'hash': it trains nothing"),
    ("spectral", "moe.balance.z=0.1", "'spectral': this router is not trained; set"),
    ("arrow.yaml+experts/ia3", "run.seed=1", "'arrow' does not work with moe.experts.kind 'ia3'"),
    ("token_hybrid", "moe.task_prior=logits; skills.n_skills=5", "(5) must be moe.n_experts (8)"),
    ("token_hydra", "moe.parallel=true", "parallel distributes experts over processes, but"),
    ("token_expert_choice", "moe.capacity_factor=1.25", "loads are equal; remove"),
    ("token_loramoe", "moe.balance.localised=0", "needs the loss balance.localised"),
    ("token_top2", "moe.balance.localised=1", "localised needs the experts of each task"),
    ("token_prior", "moe.n_experts_at={q: 2}", "n_experts_at does not work with task_prior"),
    ("token_prior", "moe.task_prior=mask", "router.kind 'polytropon': its learned weights are"),
    ("token_prior", "router.kind=hyperformer", "logarithms need positive weights"),
    ("token_hybrid", "moe.task_prior=logits; skills.n_heads=2", "(logits): experts have no heads"),
]


@pytest.mark.parametrize(("fragment", "overrides", "message"), NONSENSE)
def test_nonsense_is_refused(fragment: str, overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(f"crossfit.yaml+router/{fragment}.yaml", overrides.split("; "))


@pytest.mark.parametrize(("n_processes", "fits"), [(1, False), (2, True), (3, False)])
def test_experts_are_shared_out_evenly(n_processes: int, fits: bool, tmp_path: Path) -> None:
    given = ["moe.parallel=true", "trainer.accelerator=cpu", f"trainer.devices={n_processes}"]
    config = load_config(TOP2, [*SMALL, *given])
    built, expectation = build(TOP2), nullcontext()
    if not fits:
        expectation = pytest.raises(
            ConfigError,
            match=f"4 experts over {n_processes} processes; the number of processes must be at",
        )
    with expectation:
        build_trainer(config, RunFolder(tmp_path), built)
