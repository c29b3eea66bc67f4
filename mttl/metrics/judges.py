"""Metrics of answers by an encoder or a classifier of transformers in a local folder."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torchmetrics.functional.text import bert_score
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, pipeline

from mttl.metrics.crossfit import TokenProbability
from mttl.metrics.grounding import KNOWLEDGE, KnowledgeMetric
from mttl.plugins.part_settings import OneOf, refusing
from mttl.runtime.libraries import quiet_loading

LONGEST = 512  # tokens; the limit of BERT and RoBERTa


@refusing
class BertScore(KnowledgeMetric):
    r"""F1 of the greedy matching of tokens by the cosine of their hidden states.

    With the tokens :math:`x` of the text and :math:`\hat x` of the answer, recall is
    :math:`\frac{1}{|x|} \sum_{i} \max_j x_i^\top \hat x_j`, and precision the same with the roles
    exchanged. There is no weighting by frequency and no rescaling.

    Args:
        model: Folder of an encoder of transformers, with its tokenizer.
        layer: Index of the hidden states; 0 has the embeddings, and -1 the last layer.
        against: What answers are compared with; of several references, the best counts.

    References:
        Zhang, Kishore, Wu, Weinberger and Artzi, *BERTScore: Evaluating Text Generation with
        BERT*, ICLR 2020, arXiv:1904.09675.
    """

    def __init__(
        self,
        *,
        model: str,
        layer: int = -1,
        against: Annotated[str, OneOf(KNOWLEDGE, "references")] = KNOWLEDGE,
    ) -> None:
        super().__init__()
        n_layers = local_config("model", model, "an encoder", seq2seq=False).num_hidden_layers
        if not -n_layers <= layer <= n_layers:
            raise ValueError(f"layer ({layer}) must be from {-n_layers} to {n_layers}")
        self.layer = layer
        self.reads_references = against == "references"
        self._judge = cache(partial(load_model, AutoModel, model))  # at its first use

    def texts(
        self, references: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[str]]:
        """Return the texts that each answer is compared with: the knowledge or the references."""
        return references if self.reads_references else super().texts(references, rows)

    def compare(self, answer: str, reference: str) -> float:
        # One pair at a time: torchmetrics 1.9 sorts texts by length, and restores the wrong order.
        model, tokenizer, lengths = self._judge()
        given = {"model": model, "user_tokenizer": tokenizer, "device": model.device, **lengths}
        found: Any = bert_score([answer], [reference], num_layers=self.layer, **given)
        return min(float(found["f1"]), 1.0)  # rounding may exceed 1


class Critic(KnowledgeMetric):
    """Share of answers to which a classifier of pairs (knowledge, answer) gives a label.

    Args:
        model: Folder of a sequence classifier of transformers, with its tokenizer.
        label: Name of the label that stands for faithful answers, such as ``entailment``.

    References:
        Dziri, Kamalloo, Milton, Zaiane, Yu, Ponti and Reddy, *FaithDial: A Faithful Benchmark for
        Information-Seeking Dialogue*, TACL 2022, arXiv:2204.10757.
    """

    def __init__(self, *, model: str, label: str) -> None:
        super().__init__()
        labels = local_config("model", model, "a sequence classifier").id2label.values()
        if label not in labels:
            raise ValueError(f"label ('{label}') must be one of {', '.join(labels)}")
        self.label, self._judge = label, cache(partial(load_classifier, model))

    def compare(self, answer: str, reference: str) -> float:
        return float(self._judge()(reference, answer) == self.label)


class InversePerplexity(TokenProbability):
    """Geometric mean of the probabilities of the answers' tokens under a causal language model.

    It is 1 / perplexity, of all answers together. The first token is scored if the tokenizer has a
    token for the beginning of texts.

    Args:
        model: Folder of a causal language model of transformers, with its tokenizer.
    """

    reads_references = False

    def __init__(self, *, model: str) -> None:
        super().__init__()
        local_config("model", model, "a causal language model", seq2seq=False)
        self._judge = cache(partial(load_model, AutoModelForCausalLM, model))

    def row(self, prediction: str, accepted: Sequence[str]) -> tuple[float, int]:
        model, tokenizer, lengths = self._judge()
        ids = tokenizer(prediction.strip(), **lengths)["input_ids"]
        start = tokenizer.bos_token_id
        if start is not None and ids[:1] != [start]:
            ids = [start, *ids]
        if len(ids) < 2:
            return 0.0, 0
        given = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            return float(model(given, labels=given).loss) * (len(ids) - 1), len(ids) - 1


def local_config(setting: str, folder: str, what: str, *, seq2seq: bool = True) -> Any:
    """Return the configuration of a model in a local folder.

    Raises a `ValueError` if there is none, or for a model with a decoder if not ``seq2seq``.
    """
    is_saved = (Path(folder) / "config.json").is_file()
    config = AutoConfig.from_pretrained(folder) if is_saved else None
    if config is None or (config.is_encoder_decoder and not seq2seq):
        raise ValueError(
            f"{setting} ('{folder}') must be a folder with {what} of transformers and its "
            "tokenizer; it is not downloaded. Save one with save_pretrained"
        )
    return config


def load_model(kind: Any, folder: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model of a class of transformers, its tokenizer, and settings for its lengths."""
    with quiet_loading():
        model = kind.from_pretrained(folder).to(current_device()).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return model, tokenizer, limits(tokenizer, model.config)


def load_classifier(folder: str) -> Callable[[str, str], str]:
    """Return a function from two texts to the label of a classifier."""
    with quiet_loading():
        found: Any = pipeline("text-classification", model=folder, device=current_device())
    lengths = limits(found.tokenizer, found.model.config)
    return lambda text, pair: found({"text": text, "text_pair": pair}, **lengths)["label"]


def current_device() -> torch.device:
    """Return the current GPU, which differs between processes, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def limits(tokenizer: Any, config: Any) -> dict[str, Any]:
    """Return settings that truncate inputs to what a model can read."""
    most = getattr(config, "max_position_embeddings", LONGEST)
    return {"truncation": True, "max_length": min(most, tokenizer.model_max_length, LONGEST)}
