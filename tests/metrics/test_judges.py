"""Metrics by small random models, beside loops over the models' outputs."""

import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torchmetrics.text import Perplexity
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from helpers.backbones import fill, tiny_llama, tiny_t5
from mttl.metrics.crossfit import build_metric, score_answers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "tower", "is"]
WORDS += ["tall", "old", "and", "in", "paris", "a"]
ANSWERS = ["the tower is tall", "old", "a tower in paris is old and tall"]
KNOWLEDGE = ["the old tower", "tall and old and old in the old paris", "paris"]
ROWS = [{"columns": {"knowledge": text}} for text in KNOWLEDGE]
REFERENCES = [["tall", "the tower"], ["paris is old"], ["a"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    (place / "words.txt").write_text("\n".join(WORDS))
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32}
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    models = {
        "encoder": BertModel(BertConfig(**sizes)),
        "critic": BertForSequenceClassification(BertConfig(**sizes, **labels)),
        "t5": tiny_t5(),
        "llama": tiny_llama(vocab_size=len(WORDS), bos_token_id=2, eos_token_id=3),
    }
    for name, model in models.items():
        fill(model, 10)  # the classifier of this seed gives both labels
        if name == "encoder":  # positive cosines, as those of trained models
            for layer in model.encoder.layer:
                torch.nn.init.ones_(layer.output.LayerNorm.bias)
        model.save_pretrained(place / name)
        BertTokenizer(str(place / "words.txt")).save_pretrained(place / name)
    for name, start in {"llama": None, "llama_bos": "[CLS]"}.items():
        models["llama"].save_pretrained(place / name)
        tokens = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
        tokens.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token=start).save_pretrained(
            place / name
        )
    return {name: place / name for name in (*models, "llama_bos")}


def matched(encoder, tokenizer, answer: str, text: str, layer: int) -> float:
    """F1 of the formulas of Zhang et al. (2020), token by token."""
    states = []
    for words in (answer, text):
        ids = torch.tensor([tokenizer(words)["input_ids"]])
        with torch.no_grad():
            found = encoder.eval()(ids, output_hidden_states=True).hidden_states[layer]
        states.append(torch.nn.functional.normalize(found[0, 1:-1], dim=-1))
    hat, x = states
    recall = sum(max(float(a @ b) for b in hat) for a in x) / len(x)
    precision = sum(max(float(a @ b) for a in x) for b in hat) / len(hat)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("settings", "layer", "texts"),
    [
        ("", -1, [[text] for text in KNOWLEDGE]),
        (" layer=1", 1, [[text] for text in KNOWLEDGE]),
        (" against=references", -1, REFERENCES),
    ],
)
def test_bertscore_equals_its_formula(folders, settings, layer, texts):
    encoder = BertModel.from_pretrained(folders["encoder"])
    tokenizer = BertTokenizer.from_pretrained(folders["encoder"])
    expected = [
        max(matched(encoder, tokenizer, answer, text, layer) for text in own)
        for answer, own in zip(ANSWERS, texts, strict=True)
    ]
    metric = f"bertscore model={folders['encoder']}{settings}"
    found = score_answers(metric, ANSWERS, REFERENCES, ROWS)
    assert found == pytest.approx(sum(expected) / 3, abs=1e-6)  # single precision


def test_bertscore_of_equal_and_empty_texts(folders):
    metric = f"bertscore model={folders['encoder']} against=references"
    assert score_answers(metric, ["old paris"], [["old paris"]]) == pytest.approx(1, abs=1e-6)
    assert score_answers(metric, [""], [["old"]]) == 0
    assert 0 < score_answers(metric, ["tower " * 99], [["old"]]) < 1  # truncated to 32 tokens


@pytest.mark.parametrize("label", ["no", "yes"])
def test_the_critic_is_the_classifiers_decision(folders, label):
    model = BertForSequenceClassification.from_pretrained(folders["critic"]).eval()
    tokenizer = BertTokenizer.from_pretrained(folders["critic"])
    found = []
    for answer, knowledge in zip(ANSWERS, KNOWLEDGE, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(knowledge, answer, return_tensors="pt")).logits[0]
        found.append(["no", "yes"][int(logits.argmax())] == label)
    assert 0 < sum(found) < 3
    metric = build_metric(f"critic model={folders['critic']} label={label}")
    assert not list(metric.parameters())
    metric.update(ANSWERS, REFERENCES, ROWS)
    assert float(metric.compute()) == sum(found) / 3
    assert not metric.state_dict()
    assert not list(metric.parameters())


@pytest.mark.parametrize("name", ["llama", "llama_bos"])
def test_the_inverse_perplexity_is_that_of_torchmetrics(folders, name):
    """Answers of one token have no scored token without a token for the beginning."""
    model = LlamaForCausalLM.from_pretrained(folders[name]).eval()
    start = [WORDS.index("[CLS]")] * (name == "llama_bos")
    expected = Perplexity()
    for answer in [*ANSWERS, ""]:
        ids = torch.tensor([start + [WORDS.index(word) for word in answer.split()]])
        if ids.numel() > 1:
            with torch.no_grad():
                expected.update(model(ids).logits[:, :-1], ids[:, 1:])
    metric = f"inverse_perplexity model={folders[name]}"
    found = score_answers(metric, [*ANSWERS, ""], [*REFERENCES, [""]])
    assert 1 / found == pytest.approx(float(expected.compute()), rel=1e-5)  # single precision
    assert math.isnan(score_answers(metric, [""], [[""]]))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("bertscore", r"must have the form 'bertscore model=... \[layer=...\] \[against=...\]'"),
        ("critic model={critic}", "must have the form 'critic model=... label=...'"),
        ("critic modl=x label=a", "label=...'; it has no setting 'modl'. Did you mean 'model'"),
        ("f1 model=x", "must have the form 'f1'"),
        ("bertscor model=x", "did you mean 'bertscore'"),
        (
            "bertscore model=absent",
            r"\('absent'\) must be a folder with an encoder .* not downloaded",
        ),
        ("bertscore model={t5}", "must be a folder with an encoder"),
        ("inverse_perplexity model={t5}", "must be a folder with a causal language model"),
        ("bertscore model={encoder} layer=3", r"layer \(3\) must be from -2 to 2"),
        ("bertscore model={encoder} against=x", r"\('x'\) must be one of knowledge, references"),
        ("critic model={critic} label=maybe", r"label \('maybe'\) must be one of no, yes"),
    ],
)
def test_wrong_settings_are_reported(folders, metric, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        build_metric(metric.format(**folders))
