"""A trained run as a folder that needs nothing else, here or on the model hub.

| path | content |
|---|---|
| ``README.md`` | the card: tasks, scores, how to ask |
| ``skills/`` | the whole inventory, of an adapted task too |
| ``backbone/`` | the backbone, where it is a folder of this machine |
| tokenizer files | the run's tokenizer |
| ``config.yaml``, ``results.csv`` | of the run, if it has them |
"""

import copy
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from mttl.assembly.build_backbone import place_of, places_of
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


@dataclass(frozen=True, kw_only=True)
class Built(Predictor):
    """A model ready to train, or to answer; one that was loaded from a run can be given away."""

    backbone: Backbone  # its section of the configuration; of a run, where it was found
    attachment: Attachment  # which layers have skills, and all routed groups
    token_layers: Attachment | None = None  # which layers route tokens, if any do
    folder: Path | None = None  # skills/, which it was loaded from
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)  # what its meta.json says

    @property
    def base(self) -> str:
        """Its backbone: a folder, a name on the hub, or what it is."""
        return place_of(self.backbone.title)

    def require(self, **features: str) -> None:
        """Refuse the run if a part lacks a feature, given with who asks; see `require_features`."""
        require_features(ModelSettings.model_validate(self.meta["settings"]), features)

    def save_skills(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write the folder ``skills/`` of a new run; see `save_inventory`."""
        backbone = self.backbone
        # Random weights come from nowhere else, frozen or not.
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
        """Write a folder that `mttl.from_pretrained` and every command read, wherever it lies.

        A backbone with a name on the hub is not copied; a folder of this machine is. What is
        written names it by its place in the folder.

        Args:
            folder: A new one; it appears whole or not at all.
            name: What the card says it is loaded by; the folder itself by default.

        Raises:
            CheckpointError: If the model was not loaded from a run.
            FileExistsError: If there is something at ``folder`` already.
        """
        source, backbone, base, places = self._loaded(), self.backbone, self.base, {}
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
            ).write(new)

    def without_networks(self) -> Self:
        """Return the run with plain prefixes in place of networks that compute them.

        Training alone needs these networks (``skills.bottleneck``): answers stay as they are, and
        adapting trains keys and values. All else is shared.
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
        """Write what `save_pretrained` writes to the model hub; return the address of the commit.

        Args:
            name: ``"OWNER/NAME"``, or ``"NAME"`` for your own account; made if it does not exist.
            private: Whether a new one is.
            token: That may write; by default that of `hf auth login`.
            message: Of the commit.

        Raises:
            CheckpointError: If the model was not loaded from a run.
            ConfigError: If the hub refuses.
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
                "only a run that was loaded can be saved: train it (mttl train), then mttl.load it"
            )
        return self.folder


def _without_bottleneck(skills: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `skills` whose prefixes, alone or among several kinds, are plain."""
    plain: dict[str, Any] = {"bottleneck": None} if "bottleneck" in skills else {}
    if "kinds" in skills:
        plain["kinds"] = [_without_bottleneck(one) for one in skills["kinds"]]
    return dict(skills) | plain
