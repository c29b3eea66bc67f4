"""Write the model of a GGUF file as a folder of safetensors, which loads faster.

mttl convert SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2
mttl train -c crossfit.yaml+backbone/smollm2_gguf.yaml -k backbone.gguf_file=null

Weights are unpacked to single precision, and the tokenizer is written to the same folder.
Needs the extra `gguf`.
"""

import argparse
from pathlib import Path

from mttl.commands.options import READ, WRITTEN, add_no_probe, make_parser, new_path
from mttl.io.errors import ConfigError
from mttl.io.files import new_folder
from mttl.runtime.command import make_console


def main(arguments: list[str] | None = None) -> int:
    """Convert; return the exit status."""
    options = parse(arguments)
    out, file = new_path(options.out), Path(options.file)
    if not file.is_file():
        raise ConfigError(f"The file '{file}' does not exist; name a file that ends in .gguf")
    from mttl.merging.check_written import check_written, logits
    from mttl.models.backbone import load_pretrained, load_tokenizer

    where = str(file.resolve().parent)
    model = load_pretrained(where, gguf_file=file.name)
    tokenizer = load_tokenizer(where, gguf_file=file.name)
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        check_written(folder, model, {} if options.no_probe else {file.name: logits(model)})
        tokenizer.save_pretrained(folder)
    make_console().print(
        f"The model is in {out}: backbone.name={out} backbone.gguf_file=null", markup=False
    )
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser("convert", __doc__)
    parser.group(READ).add_argument("file", metavar="FILE", help="a GGUF file")
    parser.group(WRITTEN).add_argument(
        "--out", metavar="DIR", required=True, help="the folder to make"
    )
    add_no_probe(parser)
    return parser.parse_args(arguments)
