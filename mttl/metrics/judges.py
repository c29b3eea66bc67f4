"""Metrics of answers by an encoder or a classifier of transformers in a local folder."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from torchmetrics.functional.text import bert_score
from transformers import AutoConfig, AutoModel, AutoTokenizer, pipeline

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
        n_layers = _config(model, "an encoder", seq2seq=False).num_hidden_layers
        if not -n_layers <= layer <= n_layers:
            raise ValueError(f"layer ({layer}) must be from {-n_layers} to {n_layers}")
        self.folder, self.layer, self.against = model, layer, against

    def texts(
        self, references: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[str]]:
        """Return the texts that each answer is compared with: the knowledge or the references."""
        return references if self.against == "references" else super().texts(references, rows)

    def compare(self, answer: str, text: str) -> float:
        # One pair at a time: torchmetrics 1.9 sorts texts by length, and restores the wrong order.
        found: Any = bert_score([answer], [text], num_layers=self.layer, **self._loaded)
        return min(float(found["f1"]), 1.0)  # rounding may exceed 1

    @cached_property
    def _loaded(self) -> dict[str, Any]:
        """Arguments with the model, which is no part of this module and its state."""
        with quiet_loading():
            model = AutoModel.from_pretrained(self.folder)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        lengths = _lengths(tokenizer, model.config)
        return {"model": model, "user_tokenizer": tokenizer, "device": _device(), **lengths}


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
        labels = _config(model, "a sequence classifier").id2label.values()
        if label not in labels:
            raise ValueError(f"label ('{label}') must be one of {', '.join(labels)}")
        self.folder, self.label = model, label

    def compare(self, answer: str, text: str) -> float:
        classify, lengths = self._classifier
        found = classify({"text": text, "text_pair": answer}, **lengths)
        return float(found["label"] == self.label)

    @cached_property
    def _classifier(self) -> tuple[Any, dict[str, Any]]:
        with quiet_loading():
            found: Any = pipeline("text-classification", model=self.folder, device=_device())
        return found, _lengths(found.tokenizer, found.model.config)


def _config(folder: str, what: str, *, seq2seq: bool = True) -> Any:
    is_saved = (Path(folder) / "config.json").is_file()
    config = AutoConfig.from_pretrained(folder) if is_saved else None
    if config is None or (config.is_encoder_decoder and not seq2seq):
        raise ValueError(
            f"model ('{folder}') must be a folder with {what} of transformers and its tokenizer; "
            "it is not downloaded. Save one with save_pretrained"
        )
    return config


def _device() -> torch.device:
    """Return the current GPU, which differs between processes, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _lengths(tokenizer: Any, config: Any) -> dict[str, Any]:
    """Return settings that truncate inputs to what a model can read."""
    most = getattr(config, "max_position_embeddings", LONGEST)
    return {"truncation": True, "max_length": min(most, tokenizer.model_max_length, LONGEST)}
