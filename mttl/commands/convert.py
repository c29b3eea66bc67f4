"""Write the model of a GGUF file as a folder of safetensors, which loads faster.

mttl convert SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2
mttl train -c crossfit.yaml+backbone/smollm2_gguf.yaml -k backbone.gguf_file=null

Weights are unpacked to single precision, and the tokenizer is written to the same folder.
Needs the extra `gguf`.
"""

import argparse
from pathlib import Path

from mttl.commands.options import READ, CommandParser, add_no_probe, add_out, command
from mttl.io.errors import ConfigError
from mttl.io.files import new_folder
from mttl.runtime.command import say


def declare(parser: CommandParser) -> None:
    """Add the options."""
    parser.group(READ).add_argument("file", metavar="FILE", help="a GGUF file")
    add_out(parser, "the folder to make")
    add_no_probe(parser)


@command(declare)
def main(options: argparse.Namespace) -> None:
    """Convert."""
    file = Path(options.file)
    if not file.is_file():
        raise ConfigError(f"The file '{file}' does not exist; name a file that ends in .gguf")
    from mttl.merging.check_written import check_written, logits
    from mttl.models.backbone import load_pretrained, load_tokenizer

    where = str(file.resolve().parent)
    model = load_pretrained(where, gguf_file=file.name)
    tokenizer = load_tokenizer(where, gguf_file=file.name)
    with new_folder(options.out) as folder:
        model.save_pretrained(folder)
        check_written(folder, model, {} if options.no_probe else {file.name: logits(model)})
        tokenizer.save_pretrained(folder)
    say(f"The model is in {options.out}: backbone.name={options.out} backbone.gguf_file=null")
