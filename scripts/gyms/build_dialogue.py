"""Build dialogues about facts, with faithful, copied and hallucinated responses.

    python scripts/gyms/build_dialogue.py --out dialogues [--rows 6000] [--hallucinated 0.4]

docs/howto/dialogue.md has the next commands. A row has knowledge of two or three sentences, one to
three turns, and a response. Entities of train, dev and test are disjoint, and training rows
exchange values between entities at random, so that answers need the knowledge. The rows of
`dev.jsonl` and `test.jsonl` have faithful references. Equal options give equal files, with the same
versions of the packages that `dialogue_gym.facts` names. `talk` is trained by
default; choose others by `data.partition`:

- `talk`: a mix of faithful, copied and hallucinated responses. Chatty users get most of the
  hallucinated ones, so that greedy search hallucinates about as often as the mix.
- `expert`, `anti_expert`: only paraphrased faithful responses, and only hallucinated ones.
- `control`: as `talk`, with codes by knowledge F1.
- `channel`: from response and turns to the knowledge. `lm`: the response without the knowledge.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dialogue_gym.draws import LEAST, Draws
from dialogue_gym.facts import read_facts

from mttl.io import yaml12
from mttl.io.files import new_folder

SHARE = 0.4
METRICS = "dialogue_gym.metrics"


def rows_of(seed: int, n_train: int, n_test: int, share: float) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of each file of rows, and its rows."""
    facts = read_facts()
    sets = {"talk": ("", n_train), "expert": ("faithful", n_train // 2)}
    sets["anti_expert"] = ("hallucinated", n_train // 2)
    for name, (label, n) in sets.items():
        for split, n_rows in {"train": n, "dev": n_test}.items():
            exchanged = split == "train"
            draws = Draws(facts[split], f"{seed} {name} {split}", share, exchanged=exchanged)
            yield f"{name}_{split}", [draws.row(label) for _ in range(n_rows)]
    for split in ("dev", "test"):
        draws = Draws(facts[split], f"{seed} {split}", share, exchanged=False)
        yield split, [draws.row("faithful") for _ in range(n_test)]


def tasks() -> dict[str, Any]:
    """Return the content of `tasks.yaml`."""

    def source(name: str) -> dict[str, str]:
        files = {split: f"{name}_{split}.jsonl" for split in ("train", "dev")}
        return files | {"test": "test.jsonl"}

    found: dict[str, Any] = {
        name: {"side": "train" if name == "talk" else "test", "source": source(name)}
        for name in ("talk", "expert", "anti_expert")
    }
    found["control"] = found["talk"] | {"side": "test", "control": {"knowledge_f1": 3}}
    plain = {"kind": "text-to-text", "side": "test"}
    channel = {"input": "assistant: {response}\n{history|turns}", "output": "{knowledge}"}
    found["channel"] = plain | {"metric": "rouge", "source": source("expert")} | channel
    lm = {"input": "{history|turns}", "output": "{response}", "columns": ["knowledge", "history"]}
    found["lm"] = plain | {"metric": "rouge", "source": source("talk")} | lm
    return {"kind": "dialogue", "k": "all", "metric": "rouge", "tasks": found}


def main(argv: list[str] | None = None) -> None:
    """Write all files into a new folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder, which must not exist")
    parser.add_argument("--seed", type=int, default=13, help="seed (%(default)s)")
    help = "training rows of talk, twice those of the experts (%(default)s)"
    parser.add_argument("--rows", type=int, default=6000, help=help)
    parser.add_argument(
        "--test-rows", type=int, default=300, help="rows of a dev or test file (%(default)s)"
    )
    help = "share of hallucinated responses in talk (%(default)s)"
    parser.add_argument("--hallucinated", type=float, default=SHARE, help=help)
    given = parser.parse_args(argv)
    if not LEAST <= given.hallucinated <= 0.75:
        parser.error(f"--hallucinated ({given.hallucinated}) must be from {LEAST} to 0.75")
    with new_folder(given.out) as folder:
        files = rows_of(given.seed, given.rows, given.test_rows, given.hallucinated)
        for name, rows in files:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        (folder / "tasks.yaml").write_text(yaml12.dump(tasks()), encoding="utf-8")


if __name__ == "__main__":
    main()
