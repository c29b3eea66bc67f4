"""Adapters for vLLM answer as the run, and what vLLM cannot serve is refused."""

import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers.cards import ASKED, QUESTIONS
from helpers.compare import relative_error
from helpers.gyms import make_run
from helpers.peft_adapters import peft
from mttl.assembly.model import load_run
from mttl.commands import export as EXPORT
from mttl.io.errors import CheckpointError
from mttl.peft_format.skill_formats import SkillAdapter, vllm_rank

ROUNDING = 1e-5  # float32 arithmetic in another order


def test_the_printed_command_names_what_answers_as_the_run(tmp_path: Path) -> None:
    """Each task is the base and its LoRA, loaded by PEFT, and asked by the chat template."""
    skills, out = {"rank": 3, "mix": "outputs", "n_skills": 4}, tmp_path / "served"
    run = load_run(make_run(tmp_path, **ASKED["llama"], skills=skills))
    assert EXPORT.main([str(run.folder.parent), "--vllm", "--out", str(out)]) == 0
    (line,) = re.findall(r"```bash\n(.*?)\n```", (out / "README.md").read_text())
    words = shlex.split(line)
    # Four skills of rank 3 are one LoRA of rank 12, for which vLLM needs 16.
    assert " --enable-lora --max-lora-rank 16 --max-loras 3 --lora-modules " in line
    named = dict(word.split("=") for word in words[-len(run.tasks) :])
    assert [*named] == [*run.tasks]
    tokenizer = AutoTokenizer.from_pretrained(words[words.index("--tokenizer") + 1])
    template = Path(words[words.index("--chat-template") + 1]).read_text()
    asked = [{"role": "user", "content": QUESTIONS[0]}]
    run.model.eval()
    for task, path in named.items():
        given = {"add_generation_prompt": True, "task": task, "chat_template": template}
        ids = tokenizer.apply_chat_template(asked, return_tensors="pt", **given)["input_ids"]
        prompt = run.form.text(task, QUESTIONS[0]), run.form.prompt_prefix(task)
        assert ids.tolist() == run.encoder.prompts(*([part] for part in prompt))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            base = AutoModelForCausalLM.from_pretrained(words[2], dtype="float32")
            adapted = peft.PeftModel.from_pretrained(base, path).eval()
        with torch.no_grad():
            expected = run.model(run.task_ids([task]), input_ids=ids).logits
            assert relative_error(adapted(input_ids=ids).logits, expected) < ROUNDING


def test_what_vllm_cannot_serve_is_refused() -> None:
    lora = {"peft_type": "LORA", "r": 8, "fan_in_fan_out": False}
    for config, message in (
        ({**lora, "task_type": "SEQ_2_SEQ_LM"}, "encoder-decoder backbone, which vLLM does not"),
        ({"peft_type": "IA3"}, "has an adapter of IA3, and vLLM serves only LoRA; serve the run"),
        ({"config": {}}, "has an adapter of AdapterHub, and vLLM serves only LoRA"),
        ({**lora, "modules_to_save": ["norm"]}, "has trained norms, which vLLM does not load"),
        ({**lora, "fan_in_fan_out": True}, "transposed layers (GPT-2), for which vLLM has no"),
        ({**lora, "r": 513}, "rank 513, and vLLM's maximum is 512; truncate it with --rank 512"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(message)):
            vllm_rank("a", SkillAdapter("peft", config, {}, {}))
    known = {1: 8, 8: 8, 9: 16, 257: 320, 512: 512}
    adapters = {rank: SkillAdapter("peft", {**lora, "r": rank}, {}, {}) for rank in known}
    assert {rank: vllm_rank("a", one) for rank, one in adapters.items()} == known
