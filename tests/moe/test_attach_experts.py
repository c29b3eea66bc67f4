"""Where experts go, and that they see tokens and never padding."""

import pytest
import torch

from helpers.backbones import BACKBONES, batch, tiny_bart, tiny_llama, tiny_t5
from helpers.experts import N_EXPERTS, balanced, lora, padded_batch, token_model, top2
from helpers.skills import ROUTERS
from mttl.moe.attach_experts import attach_experts, expert_places
from mttl.routing import ExpertRouter, RoutingSlot
from mttl.routing.token.hash import HashRouter
from mttl.routing.token.top_k import TopKRouter
from mttl.skills import AdapterInventory, LoRAInventory, SkilledModel, attach_skills

TASKS = torch.tensor([0, 2, 1])


def records(model, inputs):
    """Return what layers chose in one forward pass, by layer."""
    routing = model.route(TASKS, inputs=inputs)
    with model.slot.use(routing):
        model.backbone(**inputs)
    return {record.layer: record for record in routing.records}


def test_projections_of_the_encoders_output_see_its_tokens():
    for backbone, name in ((tiny_t5(), "EncDecAttention.k"), (tiny_bart(), "encoder_attn.k_proj")):
        for place in expert_places(backbone, [name], blocks=False):
            assert place.stack == "encoder"
        query = name.replace("k_", "q_") if "_proj" in name else "EncDecAttention.q"
        for place in expert_places(backbone, [query], blocks=False):
            assert place.stack == "decoder"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ["nothing"]}, "the target 'nothing' matches no linear layer"),
        ({"stacks": ["encoder"]}, r"stacks: this backbone has no 'encoder'; it has model"),
        ({"every": 3}, "moe.targets mlp match no layer in every 3-th block of model"),
    ],
)
def test_a_selection_of_nothing_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        expert_places(tiny_llama(), **{"blocks": False, "targets": ["mlp"]} | settings)


def test_a_layer_that_cannot_be_made_is_named_and_the_backbone_stays():
    backbone = tiny_t5()
    before = [name for name, _ in backbone.named_modules()]
    with pytest.raises(ValueError, match=r"top_k \(9\) must be at .*; at 'encoder.block.0.layer.1"):
        token_model(backbone, router=lambda place: TopKRouter(place.in_features, 4, top_k=9))
    assert [name for name, _ in backbone.named_modules()] == before
    with pytest.raises(ValueError, match="has 4 skills or experts and 1 heads, but the router has"):
        token_model(
            tiny_t5(), prior="logits", task_router=ExpertRouter(8, 3, 1, 5, matrix=torch.ones(3, 5))
        )


@pytest.mark.parametrize("experts", ["lora", "copies"])
@pytest.mark.parametrize("name", ["t5", "bart", "llama"])
def test_what_stands_in_padding_does_not_matter(name, experts):
    """Also where experts have little room, which padding must not take."""
    model = token_model(BACKBONES[name](), experts=experts, eval_capacity_factor=0.6)
    inputs = padded_batch()
    if name == "llama":
        inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    plain = model(TASKS, **inputs).loss
    longer = {
        key: torch.nn.functional.pad(value, (0, 3), value=-100 if key == "labels" else 0)
        for key, value in inputs.items()
    }
    longer["input_ids"] = longer["input_ids"].masked_fill(longer["attention_mask"] == 0, 17)
    # Sums of more numbers, in another order.
    torch.testing.assert_close(model(TASKS, **longer).loss, plain, rtol=1e-5, atol=1e-6)


def answers(model, inputs, **settings):
    return model.generate(TASKS, **inputs, max_new_tokens=4, do_sample=False, **settings)


@pytest.mark.every(3)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["t5", "bart", "llama"])
def test_a_batch_is_answered_as_its_rows_are_alone(name, beams):
    targets = ["EncDecAttention.k", "encoder_attn.v_proj", "mlp"]
    targets = {"t5": targets[::2], "bart": targets[1:], "llama": ["mlp"]}[name]
    model, inputs = token_model(BACKBONES[name](), targets=targets), padded_batch()
    inputs.pop("labels")
    if name == "llama":  # prompts are padded on the left
        inputs = {key: value.flip(1) for key, value in inputs.items()}
    together = answers(model, inputs, num_beams=beams)
    n_prompt = inputs["input_ids"].shape[1] if name == "llama" else 0
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        alone = {key: value[row : row + 1, mask] for key, value in inputs.items()}
        settings = {"max_new_tokens": 4, "do_sample": False, "num_beams": beams}
        ids = model.generate(TASKS[row : row + 1], **alone, **settings)[0]
        start = int(mask.sum()) if name == "llama" else 0
        expected = ids[start:]
        found = together[row, n_prompt:]
        assert torch.equal(found[: len(expected)], expected)
        assert (found[len(expected) :] == 0).all() or (found[len(expected) :] == 1).all()


@pytest.mark.parametrize("name", ["t5", "llama"])
@pytest.mark.parametrize("cached", [True, False])
def test_rows_that_have_ended_are_padding(name, cached):
    model, inputs = token_model(BACKBONES[name]()), padded_batch()
    inputs.pop("labels")
    if name == "llama":
        inputs = {key: value.flip(1) for key, value in inputs.items()}
    free = answers(model, inputs)[:, inputs["input_ids"].shape[1] if name == "llama" else 1 :]
    end = int(free[0, 1])  # the first row then ends after two tokens
    seen = []
    original = model.route

    def route(*args, **settings):
        seen.append(original(*args, **settings))
        return seen[-1]

    model.route = route
    ids = answers(model, inputs, eos_token_id=end, pad_token_id=0, use_cache=cached)
    start = inputs["input_ids"].shape[1] if name == "llama" else 1
    ended = (ids[:, start:] == end).cumsum(1) - (ids[:, start:] == end).long()
    # The newest token is never read; what follows an end is padding.
    n_read = int((ended[:, :-1] == 0).sum()) if cached else None
    last = [r for r in seen[0].records if r.stack != "encoder"]
    counts = [int(r.load().sum()) // 2 for r in last if r.layer == last[0].layer]
    if cached:
        prompt = int(inputs["attention_mask"].sum()) if name == "llama" else 3
        ends = (ids[:, start:-1] == end).sum()  # reading an end is for nothing
        assert sum(counts) == prompt + n_read - int(ends)
    else:
        assert counts[-1] < (ids.shape[1] - 1) * len(ids)


def test_checkpointing_owes_and_counts_once_what_reaches_the_routers():
    results = []
    for checkpointing in (False, True):
        model = token_model(tiny_t5(), router=balanced, train_backbone=True).double().train()
        inputs = padded_batch()
        if checkpointing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)
        routing = model.route(TASKS, inputs=inputs)
        with model.slot.use(routing):
            loss = model.backbone(**inputs, use_cache=False).loss
        routers = [layer.router.weight for layer in model.token_layers().values()]
        if not checkpointing:  # which replays once
            reached = torch.autograd.grad(routing.losses["switch"], routers, retain_graph=True)
            assert all(gradient.any() for gradient in reached)
        (loss + sum(routing.losses.values())).backward()
        assert set(routing.losses) == {"switch", "z"}
        assert len(routing.records) == len(model.token_layers())
        results.append(
            [
                *(value.detach() for value in routing.losses.values()),
                *(p.grad for p in model.parameters() if p.grad is not None),
            ]
        )
    for plain, replayed in zip(*results, strict=True):
        torch.testing.assert_close(plain, replayed)
    # Each of the layers owes about its coefficient; in evaluation none does.
    assert routing.losses["switch"].item() == pytest.approx(0.1 * 8, rel=0.5)
    with model.eval().slot.use(model.route(TASKS, inputs=inputs)) as routing:
        model.backbone(**inputs)
    assert not routing.losses


def test_task_rows_forbid_experts():
    rows = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    for prior in ("mask", "logits"):
        model = token_model(
            tiny_t5(),
            prior=prior,
            task_router=ExpertRouter(8, 3, 1, 4, matrix=rows),
            targets=["mlp"],
        )
        for record in records(model, padded_batch()).values():
            tasks = TASKS[record.tokens // record.positions]
            assert (rows[tasks, record.experts] > 0).all()


@pytest.mark.parametrize(
    ("point", "own", "targets", "n_layers"),
    [
        ("linear", "attention", ["mlp"], 8),
        ("linear", "attention", ["attention", "mlp"], 32),
        ("block", "mlp", ["mlp"], 8),
    ],
)
def test_skills_of_tasks_and_experts_of_tokens_in_one_model(point, own, targets, n_layers):
    """On other layers, on the same ones (then experts come on top), and inside of blocks."""
    kinds = {
        "linear": lambda i, o: LoRAInventory(i, o, 4, rank=2),
        "block": lambda i, o: AdapterInventory(i, o, 4, hidden_features=3, parallel=False),
    }
    backbone, slot = tiny_t5(), RoutingSlot()
    backbone.requires_grad_(False)
    attached = attach_skills(
        backbone, kinds[point], targets=[own], slot=slot, attachment_point=point
    )
    layers = attach_experts(
        *(backbone, expert_places(backbone, targets, blocks=False), lora, top2),
        slot=slot,
        prior="logits",
        granularity="block",
        groups=attached.groups,
    )
    assert layers.groups[: len(attached.groups)] == attached.groups
    assert len(layers.groups) == len(attached.groups) + 4
    model = SkilledModel(backbone, ROUTERS["polytropon"](len(layers.groups), 3, 1, 4), slot)
    assert len(model.skilled_layers()) == len(attached.layers)
    assert len(model.token_layers()) == n_layers
    before = tiny_t5().double()(**batch(3)).logits
    torch.testing.assert_close(model.double().eval()(TASKS, **batch(3)).logits, before)
    model.train()(TASKS, **padded_batch()).loss.backward()
    for layer in model.skilled_layers().values():
        assert any(value.grad.any() for value in layer.inventory.parameters())
    for layer in model.token_layers().values():
        assert layer.experts.up.grad.abs().sum() > 0


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_routing_by_vocabulary_reads_what_is_generated(name, beams):
    def by_word(place):
        return HashRouter(place.in_features, N_EXPERTS, vocabulary_size=40)

    model = token_model(BACKBONES[name](), router=by_word)
    inputs = batch(3)
    inputs.pop("labels")
    cached = answers(model, inputs, num_beams=beams)
    # Without a cache every step computes all positions again, from their own ids.
    assert torch.equal(cached, answers(model, inputs, num_beams=beams, use_cache=False))
