"""Turn the difference between a model and its base into a LoRA adapter of PEFT.

mttl extract-lora --base models/start --model models/tuned --rank 16 --out adapters/tuned
mttl import adapters/tuned --backbone models/start --out runs/tuned

Each changed linear layer gets the best change of the given rank, by SVD. Other tensors that have
changed, such as embeddings, norms and biases, are listed and left out.
"""

import argparse
from pathlib import Path

from mttl.commands.options import POSITIVE, CommandParser, command
from mttl.io.errors import ConfigError
from mttl.io.files import new_folder
from mttl.runtime.command import say


def _declare(parser: CommandParser) -> None:
    add = parser.read.add_argument
    add("--base", type=Path, required=True, metavar="DIR", help="folder of the base model")
    add("--model", type=Path, required=True, metavar="DIR", help="folder of the tuned model")
    parser.work.add_argument("--rank", **POSITIVE, default=16, help="rank (%(default)s)")
    parser.add_out(probe=True)


@command(_declare)
def main(options: argparse.Namespace) -> None:
    """Extract and write the adapter."""
    for option, folder in (("--base", options.base), ("--model", options.model)):
        if not folder.is_dir():
            raise ConfigError(f"{option} '{folder}' is not a folder")
    from mttl.commands.export import accuracy
    from mttl.peft_format.extract import extract_lora, write_extracted

    found = extract_lora(options.base, options.model, options.rank)
    if found.lost:
        names = ", ".join(found.lost[:5]) + ", ..." * (len(found.lost) > 5)
        say(f"Left out {len(found.lost)} changed tensors that LoRA does not adapt: {names}")
    with new_folder(options.out) as folder:
        write_extracted(folder, options.base, found, probe=not options.no_probe)
    say(f"The adapter is in {options.out}: {len(found.factors)} layers, {accuracy(found.factors)}")
