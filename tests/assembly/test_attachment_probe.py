"""Skills of every attachment point on many architectures: they work, or are refused."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from helpers.backbones import fill, tiny_llama
from mttl.assembly.attachment_probe import AttachmentProbe
from mttl.assembly.model import assemble
from mttl.config.load import load_config
from mttl.config.schema import Config
from mttl.data.collate import TrainCollator, padded_inputs
from mttl.io.errors import ConfigError
from mttl.models.backbone import build_random, is_decoder_only
from mttl.models.teacher_forcing import forced_inputs

POINTS = {
    "linear": "kind=lora rank=2 targets=[attention]",
    "norm": "kind=norm targets=[norms]",
    "head": "kind=head_mask start=0.01 targets=[attention]",
    "prefix": "kind=prefix length=3 targets=[attention]",
    "block": "kind=adapter hidden_features=3 activation=gelu targets=[attention]",
    "prompt": "kind=prompt length=3 targets=[input]",
    "embedded": "kind=invertible activation=gelu targets=[input]",
    "ladder": "kind=ladder side_features=4 activation=gelu targets=[stack]",
}
SIZES: dict[int, str] = {
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers mamba_expand "
    "num_key_value_heads num_decoder_layers num_encoder_layers num_experts_per_tok "
    "linear_num_key_heads",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads num_experts "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads rotary_dim "
    "num_local_experts n_routed_experts qk_rope_head_dim linear_num_value_heads",
    8: "head_dim d_kv qk_nope_head_dim v_head_dim mamba_n_heads mamba_d_head mamba_d_state "
    "state_size mamba_chunk_size chunk_size linear_key_head_dim linear_value_head_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank",
    32: "hidden_size d_model n_embd dim word_embed_proj_dim embedding_size",
    48: "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size n_inner",
    64: "vocab_size src_vocab_size tgt_vocab_size mamba_d_ssm",
    128: "max_position_embeddings n_positions n_ctx max_seq_len",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
SMALL |= {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "mamba_n_groups": 1}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
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
    "minimax": HYBRID,
    "mistral": WINDOW,
    "prophetnet": {"num_hidden_layers": None},
    "qwen3_next": HYBRID,
}
DEFAULT = "t5 bart llama gpt2 opt gpt_oss gemma2 mistral m2m_100 decoder-bart"
SLOW = """
afmoe apertus arcee bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom codegen cohere
cohere2 deepseek_v3 diffllama doge dots1 ernie4_5 exaone4 falcon falcon_h1 falcon_mamba flex_olmo
fsmt gemma gemma3_text glm glm4 gpt_bigcode gpt_neo gpt_neox gptj granite granitemoe helium jamba
granitemoehybrid led lfm2 longt5 mamba mamba2 marian mbart minimax mixtral mpt mt5 mvp nemotron
nllb-moe olmo2 olmoe pegasus pegasus_x persimmon phi phi3 plbart prophetnet qwen2 qwen3 qwen3_moe
qwen3_next smollm3 stablelm starcoder2 switch_transformers umt5 xglm decoder-mbart decoder-pegasus
decoder-blenderbot decoder-marian decoder-plbart decoder-prophetnet
"""
# Points that are absent there or that the probe refuses, and the architectures.
REFUSED = {
    "norm": "opt cohere cohere2",
    "prefix": "gpt_neo longt5 mvp xglm",
    "block": "codegen deepseek_v3 gpt_neox persimmon phi",
    "linear prefix": "led",
    "prefix block": "bloom falcon mpt pegasus_x",
    "prefix block ladder": "prophetnet",
    "prefix prompt": "minimax",
    "linear head prefix block prompt": "falcon_mamba mamba mamba2",
    "linear norm head prefix block": "decoder-bart decoder-mbart decoder-pegasus "
    "decoder-blenderbot decoder-marian decoder-plbart",  # they attend to no encoder
    "linear norm head prefix block prompt embedded ladder": "fsmt",
    "linear norm head prefix block prompt ladder": "decoder-prophetnet",
}
TEXTS, ANSWERS = [[5, 9, 11, 4], [7, 30, 8, 21, 13, 3, 12]], [[6, 14, 8], [15, 3, 40]]


def tiny(name: str) -> Any:
    """Return a small model of an architecture, far from its initialisation."""
    kind = name.removeprefix("decoder-")
    known = CONFIG_MAPPING[kind]()
    settings: dict[str, Any] = {key: size for key, size in SMALL.items() if hasattr(known, key)}
    settings |= OTHERS.get(kind, {}) | ({} if kind == name else {"is_encoder_decoder": False})
    model = build_random(kind, {key: v for key, v in settings.items() if v is not None})
    fill(model)
    return model.eval().requires_grad_(False)


def config_of(point: str) -> Config:
    settings = [f"skills.{setting}" for setting in POINTS[point].split()]
    return load_config("crossfit.yaml+backbone/tiny_t5.yaml", ["skills.n_skills=2", *settings])


def forced(backbone: Any, call: Any, rows: list[int]) -> Tensor:
    """Return logits as in training."""
    given = [{"input_ids": TEXTS[i], "labels": ANSWERS[i], "task_id": i} for i in rows]
    batch = TrainCollator(0, is_decoder_only(backbone))(given)
    return call(rows, **forced_inputs(backbone, batch), use_cache=False).logits


def generated(backbone: Any, generate: Any, rows: list[int]) -> Tensor:
    """Return logits of two tokens of the first row; of several rows with a cache."""
    inputs = padded_inputs([TEXTS[i] for i in rows], 0, left=is_decoder_only(backbone))
    settings: dict[str, Any] = {"num_beams": 1, "do_sample": False, "pad_token_id": 0}
    settings |= {"max_new_tokens": 2, "min_new_tokens": 2, "use_cache": len(rows) > 1}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    return torch.stack(generate(rows, **inputs, **settings).logits, 1)[0]


# By default every architecture meets two or three points, and every point some architectures.
CASES = [
    pytest.param(name, point, marks=() if often and (i + j) % 3 == 0 else pytest.mark.slow)
    for often, names in ((True, DEFAULT), (False, SLOW))
    for i, name in enumerate(names.split())
    for j, point in enumerate(POINTS)
]


@pytest.mark.parametrize(("name", "point"), CASES)
def test_skills_work_or_are_refused(name: str, point: str) -> None:
    backbone, config = tiny(name), config_of(point)
    if any(name in names.split() for points, names in REFUSED.items() if point in points):
        with pytest.raises(ConfigError, match=r"does not work on a|matches no|prefixes need"):
            assemble(backbone, config, ("one", "two"))
        return
    plain = forced(backbone, lambda _, **inputs: backbone(**inputs), [0, 1])
    first = forced(backbone, lambda _, **inputs: backbone(**inputs), [0])[0]
    # Some models (decoders of BART) count padding as positions, with skills or without.
    own = [generated(backbone, lambda _, **a: backbone.generate(**a), r) for r in ([0, 1], [0])]
    model = assemble(backbone, config, ("one", "two"))[0].eval()
    layers = model.skilled_layers().values()

    def call(rows: list[int], **inputs: Any) -> Any:
        return model(torch.tensor(rows), **inputs)

    def generate(rows: list[int], **inputs: Any) -> Any:
        return model.generate(torch.tensor(rows), **inputs)

    after = forced(backbone, call, [0, 1])
    if point != "prompt":
        torch.testing.assert_close(after, plain, rtol=1e-4, atol=1e-5)
    for seed, layer in enumerate(layers):
        before = after.detach()
        fill(layer.inventory, seed)
        after = forced(backbone, call, [0, 1])
        assert not torch.equal(before, after)
    after.square().sum().backward()
    for layer in layers:
        assert any(v.grad is not None and v.grad.any() for v in layer.inventory.parameters())
    with torch.no_grad():
        alone = forced(backbone, call, [0])[0]
        if torch.allclose(plain[0, : len(first)], first, rtol=1e-3, atol=1e-3):
            torch.testing.assert_close(after[0, : len(alone)], alone, rtol=1e-3, atol=1e-3)
        if torch.allclose(*own, rtol=1e-3, atol=1e-3):
            both, alone = (generated(backbone, generate, rows) for rows in ([0, 1], [0]))
            torch.testing.assert_close(both, alone, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_stays_as_it_is(dtype: torch.dtype) -> None:
    models: list[Any] = [tiny_llama(), tiny_llama()]
    backbone, other = (model.to(dtype).train() for model in models)
    backbone.model.layers[0].eval()
    modes, state = [module.training for module in backbone.modules()], torch.get_rng_state()
    probe = AttachmentProbe(backbone)
    assert probe.plain is not None
    assert [module.training for module in backbone.modules()] == modes
    model = assemble(backbone, config_of("prefix"), ("one", "two"))[0]
    skills, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    probe.check(model.slot, "prefix", True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, skills[name]), name
    torch.set_rng_state(state)
    plain = assemble(other, config_of("prefix"), ("one", "two"), trained=True)[0]  # unprobed
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, skills[name]), name


def test_what_a_backbone_does_by_itself_is_told(caplog: pytest.LogCaptureFixture) -> None:
    AttachmentProbe(tiny_llama())
    assert not caplog.text
    AttachmentProbe(tiny("decoder-bart"))  # it counts padding as positions
    assert "padding changes the answers of this BartForCausalLM" in caplog.text
    backbone: Any = tiny_llama()
    backbone.model.layers[0].mlp = None
    assert AttachmentProbe(backbone).plain is None
    assert "skills not checked: a forward pass of this LlamaForCausalLM failed" in caplog.text
