"""Rules of vLLM for LoRA adapters: ``vllm/config/lora.py``, ``vllm/lora/peft_helper.py``."""

from mttl.io.errors import CheckpointError
from mttl.peft_format.skill_formats import SkillAdapter

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of --max-lora-rank


def vllm_rank(task: str, adapter: SkillAdapter) -> int:
    """Return vLLM's smallest ``--max-lora-rank`` for the adapter of a task.

    Raises:
        CheckpointError: If vLLM cannot serve the adapter.
    """
    config, kind = adapter.config, adapter.config.get("peft_type", "AdapterHub")
    problem, instead = "", "serve the run with mttl serve"
    if config.get("task_type") == "SEQ_2_SEQ_LM":
        problem = "has an encoder-decoder backbone, which vLLM does not serve"
    elif kind != "LORA":
        problem = f"has an adapter of {kind}, and vLLM serves only LoRA"
        instead += ", or try --rank R"
    elif "modules_to_save" in config:
        problem = "has trained norms, which vLLM does not load with LoRA"
    elif config["fan_in_fan_out"]:
        problem = "adapts transposed layers (GPT-2), for which vLLM has no LoRA"
    elif config["r"] > RANKS[-1]:
        problem = f"has a LoRA of rank {config['r']}, and vLLM's maximum is {RANKS[-1]}"
        instead = f"truncate it with --rank {RANKS[-1]}"
    if problem:
        raise CheckpointError(f"the task '{task}' {problem}; {instead}")
    return next(rank for rank in RANKS if rank >= config["r"])
