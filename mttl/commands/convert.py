"""Convert a GGUF file to a folder with safetensors, which loads faster.

mttl convert SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2
mttl train -c crossfit.yaml+backbone/smollm2_gguf.yaml -k backbone.gguf_file=null

Weights are converted to float32; the tokenizer is written to the same folder.
Needs the extra `gguf`.
"""

import argparse
from pathlib import Path

from mttl.commands.options import CommandParser, command
from mttl.io.errors import ConfigError
from mttl.io.files import new_folder
from mttl.io.reading import require_file
from mttl.runtime.command import say


def _declare(parser: CommandParser) -> None:
    parser.read.add_argument("file", metavar="FILE", help="a GGUF file")
    parser.add_out(probe=True)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Convert the file."""
    file = Path(options.file)
    require_file(file, ConfigError)
    from mttl.merging.check_written import write_model
    from mttl.models.backbone import load_pretrained, load_tokenizer

    where = str(file.resolve().parent)
    model = load_pretrained(where, gguf_file=file.name)
    tokenizer = load_tokenizer(where, gguf_file=file.name)
    with new_folder(options.out) as folder:
        write_model(folder, model, tokenizer, probe=not options.no_probe)
    say(f"The model is in {options.out}: backbone.name={options.out} backbone.gguf_file=null")
