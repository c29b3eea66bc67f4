"""Tasks with heads, on disk: tags, trees, labels of pairs, and numbers; and tiny backbones."""

import json
import random
from pathlib import Path

import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

ENCODER = {
    "kind": "random",
    "model_type": "bert",
    "config": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 32, "vocab_size": 384, "max_position_embeddings": 128},
    },
}
DECODER = {
    "kind": "random",
    "model_type": "llama",
    "config": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 384},
    },
    "tokenizer": "byte",
}
WORDS = ("Anna", "Bo", "Berg", "sees", "likes", "Rome", "Oslo", "a", "b")


def sentence(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Return words, tags and arcs; the second or third word is the root."""
    name = draw.choice([["Anna"], ["Bo", "Berg"]])
    words = [*name, draw.choice(["sees", "likes"]), draw.choice(["Rome", "Oslo"])]
    root = len(name) + 1
    tags = [*["B-PER", "I-PER"][: len(name)], "O", "B-LOC"]
    arcs = [f"{root}:nsubj"] * len(name) + ["0:root", f"{root}:obj"]
    return words, tags, arcs


def save_words(folder: Path) -> None:
    """Write a fast tokenizer of whole words with the marks of BERT."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    ids = {word: place for place, word in enumerate([*marks, *WORDS])}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, ids[mark]) for mark in marks[2:]],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), marks, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)


def write_headed(folder: Path) -> Path:
    """Write files of words and texts, ``tasks.yaml``, and the backbones; return the folder."""
    draw = random.Random(0)
    conll, conllu, pairs, scores = [], [], [], []
    for _ in range(24):
        words, tags, arcs = sentence(draw)
        conll.append("".join(f"{w} _ {t}\n" for w, t in zip(words, tags, strict=True)))
        rows = []
        for number, (word, arc) in enumerate(zip(words, arcs, strict=True), 1):
            head, relation = arc.split(":")
            rows.append(
                "\t".join([str(number), word, "_", "X", "_", "_", head, relation, "_", "_"])
            )
        conllu.append("\n".join(rows) + "\n")
        one, other = draw.choice("ab"), draw.choice("ab")
        label = "same" if one == other else "other"
        pairs.append(json.dumps({"one": one, "other": other, "label": label}))
        scores.append(json.dumps({"text": "a" * len(words), "label": str(len(words) / 2)}))
    (folder / "ner.conll").write_text("-DOCSTART- _ O\n\n" + "\n".join(conll))
    (folder / "trees.conllu").write_text("\n".join(conllu) + "\n")
    (folder / "pairs.jsonl").write_text("\n".join(pairs))
    (folder / "scores.jsonl").write_text("\n".join(scores))
    tasks = {
        "ner": {
            "kind": "tokens",
            "metric": "span-F1",
            "source": {
                **{"train": "ner.conll", "format": "conll"},
                "columns": ["words", "_", "tags"],
            },
        },
        "trees": {"kind": "tree", "source": {"train": "trees.conllu", "format": "conllu"}},
        "pairs": {
            **{"kind": "label", "source": {"train": "pairs.jsonl"}},
            **{"input": "{one} [SEP] {other}", "output": "{label}"},
        },
        "scores": {
            **{"kind": "label", "options": "number", "metric": "Pearson-Correlation"},
            **{"source": {"train": "scores.jsonl"}, "input": "{text}", "output": "{label}"},
        },
    }
    tasks |= {"new": {**tasks["ner"], "side": "test"}}
    both = {task: {"k": 8, **keys} for task, keys in tasks.items()}
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": both}))
    save_words(folder / "words")
    encoder = {**ENCODER, "tokenizer": str(folder / "words")}
    for name, backbone in {"encoder": encoder, "decoder": DECODER}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"backbone": backbone}))
    return folder
