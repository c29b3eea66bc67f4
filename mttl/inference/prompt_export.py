"""Files that accompany exported weights: tokenizer with chat template, search, and card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.data.collate import pad_id_of
from mttl.data.prompt_form import PromptForm
from mttl.inference.model_card import Card, Kind
from mttl.inference.predictor import Predictor
from mttl.inference.question_template import question_template
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import search_file


@dataclass(frozen=True, kw_only=True)
class PromptExport:
    """The prompt format of exported weights: tokenizer, prompt form by task, and search.

    ``generation`` is the model's own generation config; ``search`` the settings of
    `mttl.models.generation.search_settings`; ``dtype`` that of the weights as they answer.
    """

    tokenizer: PreTrainedTokenizerBase
    forms: Mapping[str, PromptForm]
    decoder_only: bool
    generation: GenerationConfig
    search: Mapping[str, Any]
    dtype: str

    @classmethod
    def of(cls, run: Predictor, tasks: Sequence[str]) -> "PromptExport":
        """Return how a model is asked for some of its tasks."""
        backbone: Any = run.model.backbone
        return cls(
            tokenizer=run.tokenizer,
            forms=dict.fromkeys(tasks, run.form),
            decoder_only=is_decoder_only(backbone),
            generation=backbone.generation_config,
            search=run.search,
            dtype=str(backbone.dtype).removeprefix("torch."),
        )

    def write(
        self,
        folder: Path,
        kind: Kind,
        *,
        place: str,
        base: str,
        about: str,
        scores: Sequence[dict[str, str]] = (),
    ) -> None:
        """Write the tokenizer, ``generation_config.json`` and the card into a folder."""
        template = question_template(self.tokenizer, self.forms, decoder_only=self.decoder_only)
        if not template.exact:  # nor one that was copied
            (folder / "chat_template.jinja").unlink(missing_ok=True)
        template.tokenizer.save_pretrained(folder)
        pad_id = pad_id_of(self.tokenizer)
        search_file(self.generation, self.search, pad_id).save_pretrained(folder)
        Card(
            kind=kind,
            place=place,
            base=base,
            about=about,
            tasks=tuple(self.forms),
            decoder_only=self.decoder_only,
            dtype=self.dtype,
            template=template,
            scores=scores,
        ).write(folder)
