"""Skills of every kind in the formats of PEFT and AdapterHub, against the run's model."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from helpers.adapterhub import adapterhub
from helpers.backbones import BACKBONES, batch, fill
from helpers.compare import relative_error
from helpers.skills import PLACED, skilled, spread
from mttl.io.errors import CheckpointError
from mttl.merging.fold import task_mixing
from mttl.peft_format.skill_formats import skill_adapter
from mttl.routing import PolytroponRouter, RoutingSlot
from mttl.skills import (
    AdapterInventory,
    BitFitInventory,
    KronAInventory,
    NormInventory,
    SkilledModel,
    SparseAdapterInventory,
)
from mttl.skills.attach import Level, Placement, attach_levels

peft = pytest.importorskip("peft")
ROUNDING = 2e-6  # float32 arithmetic in another order, through two to four blocks
LINEAR = {"t5": ["q", "wo"], "llama": ["q_proj", "down_proj"], "gpt2": ["c_attn"], "bart": ["fc1"]}
CASES = [
    *((family, "ia3", "IA3") for family in BACKBONES),
    *((family, "krona-factors", "LOKR") for family in ("t5", "llama", "bart")),
    *((family, "bitfit", "BEFT") for family in ("t5", "llama", "bart")),
    *((family, "norm", "LN_TUNING") for family in BACKBONES),
    *((family, "prompt", "PROMPT_TUNING") for family in BACKBONES),
    ("llama", "prefix, joint", "PREFIX_TUNING"),
    ("llama", "prefix, computed", "PREFIX_TUNING"),
]


def exported(model, folder, task=1):
    adapter = skill_adapter(model, task_mixing(model.router, task), base=None, name="a task")
    adapter.write(folder)
    return adapter


@pytest.mark.every(3)
@pytest.mark.parametrize(("family", "kind", "form"), CASES)
def test_peft_answers_as_the_task(family, kind, form, tmp_path):
    """On a bare base, logits and answers are those of the run's model, for every row of a batch."""
    targets = LINEAR[family] if kind not in PLACED else ["attention"]
    model = skilled(BACKBONES[family](), inventory=kind, targets=targets)
    adapter = exported(model, tmp_path)
    assert adapter.config["peft_type"] == form
    theirs = peft.PeftModel.from_pretrained(BACKBONES[family](), tmp_path).eval()
    inputs = batch(3)
    tasks = torch.full((3,), 1)
    expected = model(tasks, **inputs).logits
    found = theirs(**inputs).logits[:, -expected.shape[1] :]  # prompts have logits there
    assert relative_error(found, expected) < ROUNDING
    assert relative_error(BACKBONES[family]().eval()(**inputs).logits, expected) > 0.02
    if "prefix" in kind:  # PEFT 0.21 loses prefixes in generation with transformers 5.24
        assert "before 5.24" in adapter.note
        return
    given = {"input_ids": inputs["input_ids"], "max_new_tokens": 4, "do_sample": False}
    answers = theirs.generate(**given, **adapter.search)
    assert torch.equal(answers[:, -4:], model.generate(tasks, **given)[:, -4:])


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_norms_go_beside_biases(family, tmp_path):
    """`bitfit_norms.yaml`: two kinds, of which PEFT saves the norms whole."""
    backbone, slot = BACKBONES[family](), RoutingSlot()
    biases = Placement(lambda i, o: BitFitInventory(i, o, 3), LINEAR[family])
    norms = Placement(lambda i, o, bias: NormInventory(i, o, 3, bias), ["norms"], "norm")
    attach_levels(backbone, [Level([biases, norms], slot, "model")])
    model = SkilledModel(backbone, spread(PolytroponRouter(1, 2, 1, 3)), slot).eval()
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    assert exported(model, tmp_path).config["modules_to_save"]
    theirs = peft.PeftModel.from_pretrained(BACKBONES[family](), tmp_path).eval()
    expected = model(torch.full((3,), 1), **batch(3)).logits
    assert relative_error(theirs(**batch(3)).logits, expected) < ROUNDING


@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.parametrize("kind", ["adapter, behind", "outputs", "compacter", "sparse_adapter"])
def test_adapterhub_answers_as_the_task(family, kind, tmp_path, monkeypatch):
    """Its own adapters, in the places of its T5 and Llama, with the file's tensors in them."""
    behind = {"hidden_features": 4, "parallel": False}
    made = {
        "outputs": partial(AdapterInventory, **behind, scale=2.0, layer_norm=True, mix="outputs"),
        "compacter": partial(PLACED["compacter"], parallel=False, shared=False),
        "sparse_adapter": partial(SparseAdapterInventory, **behind),
    }
    monkeypatch.setitem(PLACED, kind, made.get(kind, PLACED.get(kind)))
    model = skilled(BACKBONES[family](), inventory=kind, targets=["attention", "mlp"])
    config = exported(model, tmp_path).config
    theirs = adapterhub()
    settings = theirs.configuration.BnConfig.from_dict(config["config"])
    assert settings.cross_adapter == (family == "t5")
    width = int(config["hidden_size"] // settings.reduction_factor)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(tmp_path / "adapter.safetensors").items():
        stem, _, parameter = name.partition(".adapters.a_task.")
        parts.setdefault(stem, {})[parameter] = tensor
    bare = BACKBONES[family]().eval()
    for stem, state in parts.items():
        adapter = theirs.modeling.Adapter("a_task", config["hidden_size"], width, settings).eval()
        adapter.load_state_dict(state)
        parent, _, last = stem.rpartition(".")
        inside = {"attention_adapters": "self_attn", "output_adapters": "mlp"}.get(last)
        block = bare.get_submodule(f"{parent}.{inside}" if inside else stem)
        names = ("SelfAttention", "EncDecAttention", "DenseReluDense")
        block = block if inside else next(getattr(block, n) for n in names if hasattr(block, n))

        def add(block, args, made, adapter=adapter):
            y = made[0] if isinstance(made, tuple) else made
            hidden, _, residual = adapter.pre_forward(y, torch.zeros_like(y), None)
            y = adapter(hidden, residual)[0]
            return (y, *made[1:]) if isinstance(made, tuple) else y

        block.register_forward_hook(add)
    expected = model(torch.full((3,), 1), **batch(3)).logits
    assert relative_error(bare(**batch(3)).logits, expected) < ROUNDING


SERVED, MERGED = r"Use the run itself \(mttl predict", r"Write a whole model .*mttl merge-task"
STACKED = partial(AdapterInventory, parallel=False, stages=[1, 2])
OBLONG = partial(KronAInventory, shape=[2, 8])
REFUSED = [
    ("t5", "prefix, joint", f"decoder-only models with rotary positions. {SERVED}"),
    ("gpt2", "prefix, joint", f"decoder-only models with rotary positions. {SERVED}"),
    ("llama", "prefix", f"PEFT has no gated prefixes .*{SERVED}"),
    ("llama", "adapter", f"parallel adapters read before the norm. {SERVED}"),
    ("llama", STACKED, f"AdapterHub has no single adapter of several stages. {SERVED}"),
    ("gpt2", "adapter, behind", f"supported for t5, mt5, llama, mistral, not for gpt2. {SERVED}"),
    ("t5", "krona_block", f"KronABlockInventory does not add .*{SERVED}"),
    ("t5", "ladder", f"LadderInventory does not add .*{SERVED}"),
    ("t5", "krona-deltas", f"one product, not a sum. {MERGED}"),
    ("gpt2", "krona-factors", f"is for nn.Linear, not Conv1D. {MERGED}"),
    ("t5", OBLONG, f"left factors near the square roots .*has \\[2, 8\\]. {MERGED}"),
    ("t5", "dense-deltas", f"set a rank. {MERGED}"),
]


@pytest.mark.parametrize(("family", "kind", "message"), REFUSED)
def test_what_has_no_format_says_what_answers(family, kind, message, tmp_path, monkeypatch):
    words = {"prefix": "attention", "ladder": "stack", "dense-deltas": "wi", "krona-deltas": "wi"}
    words |= {"krona-factors": "c_attn", OBLONG: "wi", "prefix, joint": "attention"}
    if not isinstance(kind, str):
        monkeypatch.setitem(PLACED, "own", kind)
    name = kind if isinstance(kind, str) else "own"
    model = skilled(BACKBONES[family](), inventory=name, targets=[words.get(kind, "mlp")])
    with pytest.raises(CheckpointError, match=message):
        exported(model, tmp_path)
