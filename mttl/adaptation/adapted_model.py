"""Model adapted to one task: answers inputs, and is saved in a folder.

The folder is a run with one task whose inventory refers to the original run. ``skills/`` has the
task's routing weights and other trained tensors; ``plots/routing_history.npz`` their history.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mttl.adaptation.job import Outcome
from mttl.adaptation.modes import TRAINED_ROLES
from mttl.adaptation.plan import FewShotResult
from mttl.assembly.build_router import counted
from mttl.assembly.saved_settings import ModelSettings, read_found_settings
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.saved_inventory import read_inventory, save_adapted_inventory
from mttl.config.load import dump_config
from mttl.config.schema import Config
from mttl.config.skills_schema import router_section
from mttl.inference.predictor import Predictor
from mttl.io.errors import CheckpointError
from mttl.io.files import new_folder, write_text
from mttl.routing.task.fixed import CoefficientRouter, FixedRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRouter
from mttl.training.predictions import Result, write_predictions, write_results

# Settings of Polytropon's router that an adapted router keeps.
POLYTROPON = ("relaxed", "straight_through", "normalise", "shared_skill", "init_scale")
POLYTROPON += ("logit_dropout",)


class LeftOut(NamedTuple):
    """Estimate by leave-one-out: each example was answered by a model adapted to the others."""

    init: str  # initial routing
    score: float  # of the answers, by the metric
    confidence: float | None  # mean probability of the right answers, if there are options
    n: int  # number of examples

    def __str__(self) -> str:
        sure = "" if self.confidence is None else f", confidence {100 * self.confidence:.0f} %"
        return f"leave-one-out on {self.n} examples: score {100 * self.score:.0f} %{sure}"


@dataclass(frozen=True, kw_only=True)
class AdaptedModel(Predictor):
    """A model adapted to one task; call it with inputs to get answers."""

    outcome: Outcome
    config: Config  # configuration of the adaptation
    skills: Path  # inventory folder of the original run
    inventory: str  # digest of that inventory
    left_out: LeftOut | None = None  # of a few examples without development examples

    @property
    def result(self) -> FewShotResult:
        """Score on the development rows, and the step whose weights were kept."""
        return self.outcome.result

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        """Return one answer per input, in order.

        Raises:
            TypeError: If ``inputs`` is a single text instead of a list.
        """
        size = self.config.data.eval_batch_size
        return self.predict(self.result.task, inputs, batch_size=size)

    def save(self, folder: str | Path, *, replace: bool = False) -> None:
        """Save the adapted task to a folder that `mttl.load` reads.

        The folder has the differences from the original run, which is needed for loading. It is
        written atomically; with ``replace``, an existing folder is replaced.

        Raises:
            CheckpointError: If the original run has changed.
            FileExistsError: If ``folder`` exists.
        """
        if inventory_digest(self.skills) != self.inventory:
            raise CheckpointError(
                f"'{self.skills}' has changed since it was loaded, so the adapted model cannot be "
                "saved. Adapt again"
            )
        source, result = read_inventory(self.skills), self.result
        with new_folder(folder, replace=replace) as new:
            files = RunFolder(new)
            save_adapted_inventory(
                *(files.skills, self.model, result.task, source),
                place=Path(folder) / files.skills.name,
                backbone_trained="backbone" in TRAINED_ROLES[self.config.adapt.mode],
                settings=self._settings(read_found_settings(source)).model_dump(mode="json"),
            )
            write_text(files.config, dump_config(self.config))
            scores = []
            for split, rows in self.outcome.answers.items():
                where = result.task, split, str(result.sample), result.seed, result.metric
                scores.append(Result(*where, getattr(result, split), len(rows)))
                write_predictions(files.predictions, rows, [result.task], split)
            write_results(files.results, scores)
            history = self.outcome.history
            if history.rows and not self.model.router.weighs_tokens:
                history.write(files.plots / "routing_history.npz")

    def _settings(self, base: ModelSettings) -> ModelSettings:
        """Return the settings of the adapted model."""
        config, changed = self.config, adapted_sections(base, self.model.router)
        changed |= {"data": self.form, "generation": config.generation}
        return base.model_copy(update=changed | {"precision": config.trainer.precision})


def adapted_sections(base: Any, own: TaskRouter) -> dict[str, Any]:
    """Return the sections router and skills of a model with an adapted router of any kind."""
    router, skills = counted(base.router), base.skills
    if isinstance(own, FixedRouter) and not own.draws and router.kind != "none":
        router = router_section("average", granularity=router.granularity)
    elif type(own) is CoefficientRouter:
        router = router_section("coefficients", granularity=router.granularity)
    elif type(own) is PolytroponRouter:  # `learned` rows use a plain Polytropon router
        settings = {name: getattr(own, name) for name in POLYTROPON}
        router = router_section("polytropon", granularity=router.granularity, **settings)
    if skills.kind != "none":
        skills = skills.model_copy(update={"n_skills": own.n_skills})
    return {"router": router, "skills": skills}
