"""A trained run as a self-contained folder, local or on the model hub.

It has a model card, the complete inventory (also for an adapted task), the tokenizer, the backbone
if it is a local folder, and copies of ``config.yaml`` and ``results.csv`` if present.
"""

import copy
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float

from mttl.analysis.routing_record import Curves, read_metrics
from mttl.assembly.build_backbone import place_of, places_of
from mttl.assembly.other_runs import OtherSkills
from mttl.assembly.saved_settings import ModelSettings
from mttl.checkpoints.model_hub import make_repository, upload
from mttl.checkpoints.saved_inventory import save_inventory
from mttl.config.backbone_schema import Backbone, RandomBackbone
from mttl.config.capabilities import require_features
from mttl.inference.model_card import Card, scores_of
from mttl.inference.predictor import Predictor
from mttl.io.errors import CheckpointError
from mttl.io.files import new_folder, write_text
from mttl.io.yaml12 import dump, read_yaml
from mttl.models.backbone import BYTE_TOKENIZER, is_decoder_only
from mttl.skills.attach import Attachment
from mttl.skills.inputs.prefix import PrefixInventory


@dataclass(frozen=True, kw_only=True, repr=False)
class Built(Predictor):
    """A model with everything that it needs to train or to answer."""

    backbone: Backbone  # section with the current folders
    attachment: Attachment  # layers with skills, and all routed groups
    token_layers: Attachment | None = None  # layers that route tokens
    others: tuple[OtherSkills, ...] = ()  # skills of other runs below
    folder: Path | None = None  # skills/ folder it was loaded from
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)  # content of meta.json

    @property
    def base(self) -> str:
        """Backbone as a folder, a name on the hub, or a description."""
        return place_of(self.backbone.title)

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Scores from ``results.csv``, by task and split; with several tasks also their ``mean``.

        They are fractions, and means over samples. Empty if nothing was scored.
        """
        found: dict[str, dict[str, list[float]]] = {}
        for row in scores_of(self.folder, self.tasks) if self.folder else []:
            splits = found.setdefault(row["task"], {})
            splits.setdefault(row["split"], []).append(float(row["score"]))
        return {
            task: {split: fmean(scores) for split, scores in splits.items()}
            for task, splits in found.items()
        }

    @property
    def routing(self) -> dict[str, Float[np.ndarray, "G H K"]]:
        """Routing weights of every task: layer groups, heads and skills."""
        with torch.no_grad():
            matrix = self.model.router.matrix().float().cpu().numpy()
        return {task: matrix[:, place] for place, task in enumerate(self.tasks)}

    @property
    def history(self) -> Curves:
        """Columns of ``metrics.csv`` by name, each as steps and values; empty without the file."""
        return {} if self.folder is None else read_metrics(run_of(self.folder))

    def __repr__(self) -> str:
        layers, router = self.model.skilled_layers(), self.model.router
        kinds = ", ".join(sorted({type(x.inventory).__name__ for x in layers.values()})) or "none"
        n_own = sum(part.numel() for x in layers.values() for part in x.inventory.parameters())
        means: dict[str, float] = next(reversed(self.scores.values()), {})
        scored = ", ".join(f"{split} {100 * score:.1f} %" for split, score in means.items())
        names = ", ".join(self.tasks[:5]) + (", …" if len(self.tasks) > 5 else "")
        groups = f"{router.n_groups} groups of layers"
        return f"""run {str(run_of(self.folder)) if self.folder else "(new)"!r}
  tasks     {len(self.tasks)}: {names}
  backbone  {self.base} ({type(self.model.backbone).__name__})
  skills    {router.n_skills} on {len(layers)} layers: {kinds}, {n_own:,} parameters
  router    {type(router).__name__}, {groups}
  scores    {scored or "none"}"""

    def require(self, **features: str) -> None:
        """Raise a `CheckpointError` if the run lacks a feature; see `require_features`."""
        require_features(ModelSettings.model_validate(self.meta["settings"]), features)

    def save_skills(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write the folder ``skills/`` of a new run; see `save_inventory`."""
        backbone = self.backbone
        # Random weights cannot be loaded from elsewhere, so they are always saved.
        trained = bool(backbone.train) or isinstance(backbone, RandomBackbone)
        save_inventory(
            folder,
            self.model,
            self.tasks,
            backbone_name=backbone.title,
            backbone_trained=trained,
            settings=settings,
            places=places_of(backbone),
        )

    def save_pretrained(self, folder: str | Path, *, name: str | None = None) -> None:
        """Save a self-contained folder for `mttl.from_pretrained` and all commands.

        A backbone from the hub is not copied; a local folder is, and is referred to by its relative
        path.

        Args:
            folder: New folder, written atomically.
            name: Name for loading in the model card; by default the folder.

        Raises:
            CheckpointError: If the model was not loaded from a run.
            FileExistsError: If ``folder`` exists.
        """
        source, backbone, base, places = self._loaded(), self.backbone, self.base, {}
        self.require(stands_alone="save_pretrained")
        with new_folder(folder) as new:
            if Path(base).is_dir():
                places["name"] = "backbone"
                (new / "backbone").mkdir()
                for file in sorted(path for path in Path(base).iterdir() if path.is_file()):
                    shutil.copyfile(file, new / "backbone" / file.name)
            tokenizer = backbone.tokenizer
            if tokenizer not in (None, BYTE_TOKENIZER) and Path(place_of(tokenizer)).is_dir():
                places["tokenizer"] = "."
            backbone = backbone.model_copy(update=places)
            section = {
                "backbone": backbone.model_dump(mode="json"),
                "skills": self.meta["settings"]["skills"],
            }
            self.tokenizer.save_pretrained(new)
            save_inventory(
                new / "skills",
                self.model,
                self.tasks,
                backbone_name=backbone.title,
                backbone_trained=self.meta["backbone"]["trained"],
                settings=self.meta["settings"] | section,
                places=places,
            )
            if (config := source.parent / "config.yaml").is_file():
                settings = read_yaml(config, CheckpointError)
                write_text(new / config.name, dump(settings | section))
            if (results := source.parent / "results.csv").is_file():
                shutil.copyfile(results, new / results.name)
            Card(
                kind="skills",
                place=name or str(folder),
                base=f"{places['name']}/" if "name" in places else base,
                about="Skills and a router over a frozen base, for several tasks."
                if len(self.tasks) > 1
                else "Skills over a base, for one task.",
                tasks=self.tasks,
                decoder_only=is_decoder_only(self.model.backbone),
                scores=scores_of(source, self.tasks),
                inputs={task: one.input for task, one in self.form.task_templates.items()},
                raw=bool(self.form.texts),
            ).write(new)

    def without_networks(self) -> Self:
        """Return the run with plain prefixes instead of the networks that compute them.

        Only training needs these networks (``skills.bottleneck``): answers do not change, and
        adaptation trains keys and values. Everything else is shared with this object.
        """
        self._loaded()
        model = copy.deepcopy(self.model, {id(part): part for part in self.model.parameters()})
        for module in model.modules():
            if isinstance(module, PrefixInventory):
                module.drop_network()
        settings = self.meta["settings"]
        plain = settings | {"skills": _without_bottleneck(settings["skills"])}
        return replace(self, model=model, meta=dict(self.meta) | {"settings": plain})

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        token: str | None = None,
        message: str = "Upload a run of mttl",
    ) -> str:
        """Upload the folder of `save_pretrained` to the model hub; return the commit's address.

        Args:
            name: ``"OWNER/NAME"``, or ``"NAME"`` in your account; created if it does not exist.
            private: Make a new repository private.
            token: Token with write access; by default that of `hf auth login`.
            message: Commit message.

        Raises:
            CheckpointError: If the model was not loaded from a run.
            ConfigError: If the hub rejects the upload.
        """
        self._loaded()
        repository = make_repository(name, private=private, token=token)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            self.save_pretrained(folder, name=repository)
            return upload(folder, repository, token=token, message=message)

    def _loaded(self) -> Path:
        if self.folder is None:
            raise CheckpointError(
                "only a loaded run can be saved; train it with mttl train, then use mttl.load"
            )
        return self.folder


def run_of(folder: Path) -> Path:
    """Return the run of an inventory folder."""
    return folder.parent if folder.name == "skills" else folder


def _without_bottleneck(skills: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `skills` with plain prefixes, also within several kinds."""
    plain: dict[str, Any] = {"bottleneck": None} if "bottleneck" in skills else {}
    if "kinds" in skills:
        plain["kinds"] = [_without_bottleneck(one) for one in skills["kinds"]]
    return dict(skills) | plain
