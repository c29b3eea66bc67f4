"""The second stage of training: attention over skills of an earlier run, or more steps of them."""

import logging

from mttl.assembly.build_router import count_skills
from mttl.assembly.saved_settings import ModelSettings, read_settings
from mttl.checkpoints.run_folder import differences
from mttl.checkpoints.saved_inventory import load_skills, read_inventory
from mttl.config.schema import Config
from mttl.config.skills_schema import Fusion
from mttl.io.errors import CheckpointError
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.sparse import place_supports, saved_supports

_log = logging.getLogger(__name__)

# Settings that do not change what the network computes.
FREE = {"train", "gradient_checkpointing", "compile", "dtype"}


def load_source(model: SkilledModel, config: Config) -> None:
    """Give a model the skills, and the backbone, of the run that the configuration names, if any.

    Raises:
        CheckpointError: If there is no such run, or its sections backbone and skills, or for fusion
            ``data.prefix``, differ from the configuration's; differences are listed.
    """
    fusion = config.aggregation if isinstance(config.aggregation, Fusion) else None
    name, source = "run.start", config.run.start
    if fusion is not None:
        name, source = "aggregation.source", fusion.source
    if source is None:
        return
    saved = read_inventory(source)
    built_from = read_settings(saved, ModelSettings)
    if isinstance(built_from.aggregation, Fusion):
        raise CheckpointError(f"{name} '{source}' is a fusion itself; name the run of its skills")
    theirs, ours = (
        one.model_dump(mode="json", include={"backbone", "skills"}, exclude={"backbone": FREE})
        for one in (built_from, config)
    )
    if "n_skills" in theirs["skills"]:
        theirs["skills"]["n_skills"] = count_skills(
            theirs["skills"]["n_skills"], built_from.router, len(saved.tasks)
        )
        ours["skills"]["n_skills"] = model.router.n_skills
    if fusion is not None:  # its skills stay as they are, and know one form of inputs
        theirs["data"] = {"prefix": built_from.data.prefix}
        ours["data"] = {"prefix": config.data.prefix}
    if differing := [line for _, line in differences(theirs, ours, "{} there, {} here")]:
        fragment = "aggregation/fusion.yaml" if fusion else "router/average.yaml"
        listed = "\n".join(differing)
        raise CheckpointError(
            f"the configuration is not that of {name} '{source}':\n{listed}\n"
            f"Start from that run's own: -c {source}/config.yaml+{fragment}"
        )
    if built_from.data.prefix != config.data.prefix:  # refused above where it is a fusion
        _log.warning(
            "the skills of %s '%s' have read inputs with data.prefix=%s and go on with %s: give "
            "-k data.prefix=%s to show them what they know",
            *(name, source, built_from.data.prefix, config.data.prefix, built_from.data.prefix),
        )
    if hasattr(config.skills, "support"):
        place_supports(model.skilled_layers(), saved_supports(saved.skills))
    load_skills(model, saved)
