"""What is not an adapter, or more than one, is refused with the reason."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mttl.io.errors import CheckpointError
from mttl.peft_format.peft_folder import PeftFolder, read_peft, write_peft
from mttl.peft_format.peft_lora import read_lora

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
TENSORS = {"a.q.lora_A.weight": torch.randn(2, 4), "a.q.lora_B.weight": torch.randn(5, 2)}


def adapter(tmp_path, config=None, tensors=None):
    return PeftFolder(tmp_path, CONFIG | (config or {}), TENSORS | (tensors or {}))


def test_a_folder_comes_back_as_it_was_written(tmp_path):
    write_peft(tmp_path / "a", CONFIG, TENSORS)
    found = read_peft(tmp_path / "a")
    assert found.config == CONFIG
    assert found.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in TENSORS.items())


def test_folders_that_are_none_are_refused(tmp_path):
    def refuses(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            read_peft(tmp_path)

    refuses("is not a PEFT folder: it has no adapter_config")
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(CONFIG))
    refuses(r"has no adapter_model\.safetensors")
    (tmp_path / "adapter_model.bin").touch()
    refuses("a pickle, which can run any code")
    tensors = tmp_path / "adapter_model.safetensors"
    tensors.write_bytes(b"half of it")
    refuses("is damaged")
    save_file({"q.lora_A.weight": torch.zeros(1)}, tensors)
    refuses(r"a tensor 'q\.lora_A\.weight'; PEFT's names")
    for text, message in (("{", "not valid JSON"), ("[]", "must contain an object")):
        config.write_text(text)
        refuses(message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter, not LORA"),
        ({"use_dora": True}, "uses use_dora, which is more than a low-rank change"),
        ({"modules_to_save": ["head"], "bias": "all"}, "uses modules_to_save, bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base model"),
    ],
)
def test_adapters_that_are_more_are_refused(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        read_lora(adapter(tmp_path, config))


def test_tensors_that_are_others_are_refused(tmp_path):
    for tensors, message in (
        ({"a.q.lora_magnitude_vector": torch.zeros(5)}, "cannot be used: a.q.lora_magnitude_vec"),
        ({"a.k.lora_A.weight": torch.zeros(2, 4)}, "are missing: a.k.lora_B.weight"),
        ({"a.q.lora_B.weight": torch.zeros(5, 3)}, r"shapes \(2, 4\) and \(5, 3\); a linear"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_lora(adapter(tmp_path, tensors=tensors))
    many = {f"l{number}.bias": torch.zeros(1) for number in range(7)}
    with pytest.raises(CheckpointError, match=r"l4\.bias and 2 more"):
        read_lora(adapter(tmp_path, tensors=many))
    bare = PeftFolder(tmp_path, {"peft_type": "LORA"}, TENSORS)
    with pytest.raises(CheckpointError, match="lora_alpha or alpha_pattern: unsupported"):
        read_lora(bare)
