"""Skills of every attachment point on many architectures: they work, or are refused for a reason."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from helpers.backbones import fill, tiny_llama
from mttl.build.attachment_probe import AttachmentProbe
from mttl.build.model import assemble
from mttl.config.load import load_config
from mttl.config.schema import Config
from mttl.data.collate import TrainCollator, padded_inputs
from mttl.errors import ConfigError
from mttl.models.backbone import build_random, is_decoder_only
from mttl.models.teacher_forcing import forced_inputs
from mttl.skills import SkilledModel

POINTS = {
    "linear": "kind=lora rank=2 targets=[attention]",
    "norm": "kind=norm targets=[norms]",
    "head": "kind=head_mask start=0.01 targets=[attention]",
    "prefix": "kind=prefix length=3 targets=[attention]",
    "block": "kind=adapter hidden_features=3 activation=gelu targets=[attention]",
    "prompt": "kind=prompt length=3 targets=[input]",
    "ladder": "kind=ladder side_features=4 activation=gelu targets=[stack]",
}
SIZES: dict[int, str] = {
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_key_value_heads "
    "num_decoder_layers num_encoder_layers num_experts_per_tok linear_num_key_heads mamba_expand",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads rotary_dim num_experts "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
    "num_local_experts n_routed_experts qk_rope_head_dim linear_num_value_heads",
    8: "head_dim d_kv qk_nope_head_dim v_head_dim mamba_n_heads mamba_d_head mamba_d_state "
    "state_size mamba_chunk_size chunk_size linear_key_head_dim linear_value_head_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank",
    32: "hidden_size d_model n_embd dim word_embed_proj_dim embedding_size",
    48: "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size dff n_inner",
    64: "vocab_size src_vocab_size tgt_vocab_size mamba_d_ssm",
    128: "max_position_embeddings n_positions n_ctx max_seq_len",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
SMALL |= {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "mamba_n_groups": 1}
HYBRID = ["linear_attention", "full_attention"]
WINDOW = {"sliding_window": 6}
OTHERS: dict[str, dict[str, Any]] = {
    "codegen": {"pad_token_id": None},
    "deepseek_v3": {"head_dim": None, "num_key_value_heads": 4},
    "falcon": {"head_dim": None},
    "fsmt": {"langs": ["en", "de"]},
    "gemma3_text": WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "led": {"attention_window": [4, 4]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "minimax": {"layer_types": HYBRID},
    "mistral": WINDOW,
    "prophetnet": {"num_hidden_layers": None},
    "qwen3_next": {"layer_types": HYBRID},
}
DEFAULT = "t5 bart llama gpt2 opt gpt_oss gemma2 mistral m2m_100 decoder-bart".split()
SLOW = """
afmoe apertus arcee bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom codegen cohere
cohere2 deepseek_v3 diffllama doge dots1 ernie4_5 exaone4 falcon falcon_h1 falcon_mamba flex_olmo fsmt
gemma gemma3_text glm glm4 gpt_bigcode gpt_neo gpt_neox gptj granite granitemoe granitemoehybrid helium
jamba led lfm2 longt5 mamba mamba2 marian mbart minimax mixtral mpt mt5 mvp nemotron nllb-moe olmo2
olmoe pegasus pegasus_x persimmon phi phi3 plbart prophetnet qwen2 qwen3 qwen3_moe qwen3_next smollm3
stablelm starcoder2 switch_transformers umt5 xglm decoder-mbart decoder-pegasus decoder-blenderbot
decoder-marian decoder-plbart decoder-prophetnet
""".split()
UNUSED = "linear norm head prefix block"  # with an attention to an encoder that is not there
REFUSED: dict[str, str] = {}
TEXTS = [[5, 9, 11, 4], [7, 30, 8, 21, 13, 3, 12]]
ANSWERS = [[6, 14], [15, 3]]


def tiny(name: str) -> Any:
    """Return a small model of an architecture, far from its initialisation."""
    kind = name.removeprefix("decoder-")
    known = CONFIG_MAPPING[kind]()
    settings = {key: size for key, size in SMALL.items() if hasattr(known, key)} | OTHERS.get(
        kind, {}
    )
    settings = {key: value for key, value in settings.items() if value is not None}
    if kind != name:
        settings["is_encoder_decoder"] = False
    torch.manual_seed(0)
    model = build_random(kind, settings).eval().requires_grad_(False)
    fill(model)
    return model


def config_of(point: str) -> Config:
    settings = [f"skills.{setting}" for setting in POINTS[point].split()]
    return load_config("crossfit.yaml+backbone/tiny_t5.yaml", ["skills.n_skills=2", *settings])


def forced(model: Any, call: Any, rows: list[int]) -> Tensor:
    """Return logits as in training."""
    given = [{"input_ids": TEXTS[i], "labels": ANSWERS[i], "task_id": i} for i in rows]
    return call(
        forced_inputs(model, TrainCollator(0, 2, is_decoder_only(model))(given)), rows
    ).logits


def scores(
    backbone: Any, rows: list[int], cache: bool, model: SkilledModel | None = None
) -> Tensor:
    """Return logits of two generated tokens."""
    left = is_decoder_only(backbone)
    inputs = padded_inputs([TEXTS[i] for i in rows], 0, left=left)
    settings = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False, "num_beams": 1}
    generate: Any = (
        backbone.generate if model is None else partial(model.generate, torch.tensor(rows))
    )
    found = generate(
        **inputs, **settings, use_cache=cache, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return torch.stack(found.logits, 1)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "name", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_skills_work_or_are_refused(name: str, point: str) -> None:
    backbone = tiny(name)
    plain = forced(backbone, lambda inputs, _: backbone(**inputs), [0, 1])
    # Some models (decoders of BART) give padding positions: not for skills to mend.
    apart = torch.allclose(
        scores(backbone, [0, 1], True)[:1], scores(backbone, [0], False), atol=1e-3
    )
    if point in REFUSED.get(name, "").split():
        with pytest.raises(ConfigError, match=r"does not work on a|matches no|prefixes need"):
            assemble(backbone, config_of(point), ("one", "two"))
        return
    model = assemble(backbone, config_of(point), ("one", "two"))[0].eval()

    def call(inputs: Any, rows: list[int]) -> Any:
        return model(torch.tensor(rows), **inputs, use_cache=False)

    if point != "prompt":
        torch.testing.assert_close(forced(backbone, call, [0, 1]), plain, rtol=1e-4, atol=1e-5)
    for seed, layer in enumerate(model.skilled_layers().values()):
        before = forced(backbone, call, [0, 1])
        fill(layer.inventory, seed)
        after = forced(backbone, call, [0, 1])
        assert not torch.equal(before, after)
    after.float().square().sum().backward()
    for layer in model.skilled_layers().values():
        assert any(
            value.grad is not None and value.grad.any() for value in layer.inventory.parameters()
        )
    model.zero_grad()
    with torch.no_grad():
        for row in (0, 1):
            alone = forced(backbone, call, [row])[0]
            torch.testing.assert_close(after[row, : len(alone)], alone, rtol=1e-3, atol=1e-3)
        both = scores(backbone, [0, 1], True, model)
        for row in (0, 1) if apart else (1,):
            alone = scores(backbone, [row], False, model)[0]
            torch.testing.assert_close(both[row], alone, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_stays_as_it_is(dtype: torch.dtype) -> None:
    backbone = tiny_llama().to(dtype).train()
    backbone.model.layers[0].eval()
    before, modes = copy.deepcopy(backbone.state_dict()), [m.training for m in backbone.modules()]
    state = torch.get_rng_state()
    probe = AttachmentProbe(backbone)
    assert probe.plain is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in backbone.modules()] == modes
    model = assemble(backbone, config_of("prefix"), ("one", "two"))[0]
    skills, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    probe.check(model.slot, 1, "prefix", True)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, skills[name]), name
        assert torch.equal(
            value, before.get(name.replace(".base.", ".").removeprefix("backbone."), value)
        )
