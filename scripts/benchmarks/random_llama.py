"""Write a Llama-like model with random weights into a folder, for `backbone.name`.

    python scripts/benchmarks/random_llama.py FOLDER [--size 1.3b] [--dtype bfloat16] [--json FILE]

Its vocabulary is that of the byte tokenizer or larger: set `backbone.tokenizer: byte`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "1.3b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5504,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 1024,
    },
    "tiny": {
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="A random Llama-like model in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1.3b", help="(%(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write its size here")
    settings = parser.parse_args(argv)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}  # the byte tokenizer's
    config = LlamaConfig(**SIZES[settings.size], **ids, dtype=settings.dtype)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config).to(getattr(torch, settings.dtype))
    model.save_pretrained(settings.folder)
    found = {"parameters": model.num_parameters()}
    print(f"{found['parameters']:,} parameters in {settings.folder}")
    if settings.json:
        settings.json.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
