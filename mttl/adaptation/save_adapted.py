"""An adapted task as a folder: a run of one task, whose inventory names the one it builds on.

| path | content |
|---|---|
| ``config.yaml`` | the settings of the adaptation |
| ``results.csv`` | the scores |
| ``predictions/<task>_<split>.jsonl`` | every answer |
| ``plots/routing_history.npz`` | how the task's row came about |
| ``skills/`` | the task's row, and what else training changed |

It is written whole or not at all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mttl.adaptation.adaptation_history import AdaptationHistory
from mttl.adaptation.few_shot import FewShotResult
from mttl.adaptation.modes import TRAINED_ROLES
from mttl.assembly.build_router import counted
from mttl.assembly.saved_settings import ModelSettings, read_found_settings
from mttl.checkpoints.inventory_files import inventory_digest
from mttl.checkpoints.run_folder import RunFolder
from mttl.checkpoints.saved_inventory import read_inventory, save_adapted_inventory
from mttl.config.load import dump_config
from mttl.config.router_schema import router_section
from mttl.config.schema import Config
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import CheckpointError
from mttl.io.files import new_folder, write_text
from mttl.routing.task.coefficients import CoefficientRouter
from mttl.routing.task.fixed import FixedRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.skills.skilled_model import SkilledModel
from mttl.training.predictions import Result, write_predictions, write_results
from mttl.training.text_to_text import Prediction

# The answers of a split, by its name.
Answers = Mapping[str, Sequence[Prediction]]


def save_adapted(
    folder: str | Path,
    model: SkilledModel,
    result: FewShotResult,
    answers: Answers,
    config: Config,
    form: PromptForm,
    *,
    skills: Path,
    inventory: str,
    history: AdaptationHistory,
    replace: bool = False,
) -> None:
    """Write an adapted task."""
    if inventory_digest(skills) != inventory:
        raise CheckpointError(
            f"'{skills}' has changed since it was loaded, so what was adapted from it cannot be "
            "saved. Adapt again"
        )
    source = read_inventory(skills)
    settings = _settings(read_found_settings(source), model, config, form)
    with new_folder(folder, replace=replace) as new:
        files = RunFolder(new)
        save_adapted_inventory(
            files.skills,
            model,
            result.task,
            source,
            place=Path(folder) / files.skills.name,
            backbone_trained="backbone" in TRAINED_ROLES[config.adapt.mode],
            settings=settings.model_dump(mode="json"),
        )
        write_text(files.config, dump_config(config))
        scores = {"dev": result.dev, "test": result.test}
        write_results(
            files.results,
            [
                Result(
                    *(result.task, split, str(result.sample), result.seed, result.metric),
                    *(scores[split], len(rows)),
                )
                for split, rows in answers.items()
            ],
        )
        if history.rows:
            history.write(files.plots / "routing_history.npz")
        for split, rows in answers.items():
            write_predictions(files.predictions, rows, [result.task], split)


def _settings(
    base: ModelSettings, model: SkilledModel, config: Config, form: PromptForm
) -> ModelSettings:
    """Return what builds the adapted model: its router may be of another kind than the run's."""
    router, skills = counted(base.router), base.skills
    if isinstance(model.router, FixedRouter) and not model.router.draws and router.kind != "none":
        router = router_section("average", granularity=router.granularity)
    elif type(model.router) is CoefficientRouter:
        router = router_section("coefficients", granularity=router.granularity)
    elif type(model.router) is PolytroponRouter:
        own = model.router  # a row that starts as `learned` has a plain one, whatever the run's
        settings = {
            "granularity": router.granularity,
            "relaxed": own.relaxed,
            "straight_through": own.straight_through,
            "normalise": own.normalise,
            "shared_skill": own.shared_skill,
            "init_scale": own.init_scale,
            "logit_dropout": own.logit_dropout,
        }
        router = router_section("polytropon", **settings)
    if skills.kind != "none":
        skills = skills.model_copy(update={"n_skills": model.router.n_skills})
    changed = {"router": router, "skills": skills, "data": form, "generation": config.generation}
    changed["precision"] = config.trainer.precision
    return base.model_copy(update=changed)
