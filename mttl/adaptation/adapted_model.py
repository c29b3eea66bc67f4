"""A model that was adapted to one task and answers inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from mttl.adaptation.adaptation_history import AdaptationHistory
from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.save_adapted import Answers, save_adapted
from mttl.config.schema import Config
from mttl.data.prompt_form import PromptForm
from mttl.inference.predictor import Predictor
from mttl.skills.skilled_model import SkilledModel
from mttl.training.precision import precision_plugin
from mttl.training.text_to_text import TextToTextModule


@dataclass(frozen=True)
class AdaptedModel:
    """A model that was adapted to one task; call it with inputs to get its answers.

    Args:
        module: The adapted model with its tokenizer; its router has one task.
        config: Settings of the adaptation.
        result: Score on the development rows, and the step whose weights were kept.
        form: Prompt form of training.
        answers: Answers to the development rows.
        history: History of the adaptation.
        skills: The folder ``skills/`` of the run that was adapted.
        inventory: Digest of that inventory.
    """

    module: TextToTextModule
    config: Config
    result: FewShotResult
    form: PromptForm
    answers: Answers
    history: AdaptationHistory
    skills: Path
    inventory: str

    @property
    def model(self) -> SkilledModel:
        """Backbone, skills and router; the task has the id 0."""
        return self.module.model

    @property
    def prompt_prefix(self) -> str:
        """What stands before every input, as in training."""
        return self.form.prompt_prefix(self.result.task).text

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The backbone's."""
        return self.module.tokenizer

    @property
    def predictor(self) -> Predictor:
        """The same model as `mttl.load` would return it: it also chooses among given answers."""
        precision = self.config.trainer.precision
        return Predictor(
            model=self.model,
            tokenizer=self.tokenizer,
            tasks=(self.result.task,),
            form=self.form,
            search=self.module.generation,
            per_token=self.config.generation.per_token,
            precision=precision_plugin(precision, self.module.device.type),
        )

    def save(self, folder: str | Path) -> None:
        """Keep the adapted task in a new folder, which `mttl.load` reads.

        It holds what differs from the run, and the run has to stay where it is, or to be named.

        Raises:
            CheckpointError: If the run is another one by now.
            FileExistsError: If there is something at ``folder`` already.
        """
        save_adapted(
            *(folder, self.model, self.result, self.answers, self.config, self.form),
            skills=self.skills,
            inventory=self.inventory,
            history=self.history,
        )

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        """Answer.

        Returns:
            An answer to each, in order.

        Raises:
            TypeError: If ``inputs`` is a single text rather than a list of them.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs ('{inputs}') must be a list of texts; write ['{inputs}']")
        return self.predictor.predict(
            self.result.task, inputs, batch_size=self.config.data.eval_batch_size
        )
