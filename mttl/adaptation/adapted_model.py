"""A model that was adapted to one task: it answers inputs, and is kept in a folder.

The folder is a run of one task, whose inventory names the one it builds on. ``skills/`` holds the
task's row and what else training changed, ``plots/routing_history.npz`` how the row came about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from mttl.training.predictions import Result, write_predictions, write_results

# Settings of Polytropon's router that a row of its own keeps.
POLYTROPON = ("relaxed", "straight_through", "normalise", "shared_skill", "init_scale")
POLYTROPON += ("logit_dropout",)


@dataclass(frozen=True, kw_only=True)
class AdaptedModel(Predictor):
    """A model that was adapted to one task; call it with inputs to get its answers."""

    outcome: Outcome
    config: Config  # of the adaptation
    skills: Path  # of the run that was adapted
    inventory: str  # digest of that inventory

    @property
    def result(self) -> FewShotResult:
        """Score on the development rows, and the step whose weights were kept."""
        return self.outcome.result

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        """Return an answer to each input, in order.

        Raises:
            TypeError: If ``inputs`` is a single text rather than a list of them.
        """
        size = self.config.data.eval_batch_size
        return self.predict(self.result.task, inputs, batch_size=size)

    def save(self, folder: str | Path, *, replace: bool = False) -> None:
        """Keep the adapted task in a folder, which `mttl.load` reads.

        It holds what differs from the run, and the run has to stay where it is, or to be named. It
        is written whole or not at all; with ``replace``, an earlier one is replaced.

        Raises:
            CheckpointError: If the run is another one by now.
            FileExistsError: If there is something at ``folder`` already.
        """
        if inventory_digest(self.skills) != self.inventory:
            raise CheckpointError(
                f"'{self.skills}' has changed since it was loaded, so what was adapted from it "
                "cannot be saved. Adapt again"
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
            if (history := self.outcome.history).rows:
                history.write(files.plots / "routing_history.npz")

    def _settings(self, base: ModelSettings) -> ModelSettings:
        """Return what builds the model: its router may be of another kind than the run's."""
        router, skills, own = counted(base.router), base.skills, self.model.router
        if isinstance(own, FixedRouter) and not own.draws and router.kind != "none":
            router = router_section("average", granularity=router.granularity)
        elif type(own) is CoefficientRouter:
            router = router_section("coefficients", granularity=router.granularity)
        elif type(own) is PolytroponRouter:  # a row that starts as `learned` has a plain one
            settings = {name: getattr(own, name) for name in POLYTROPON}
            router = router_section("polytropon", granularity=router.granularity, **settings)
        if skills.kind != "none":
            skills = skills.model_copy(update={"n_skills": own.n_skills})
        config = self.config
        changed = {"router": router, "skills": skills, "data": self.form}
        changed |= {"generation": config.generation, "precision": config.trainer.precision}
        return base.model_copy(update=changed)
