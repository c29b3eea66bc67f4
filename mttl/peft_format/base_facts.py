"""Which model lies below a library, and whether another one is the same."""

from pathlib import Path

from mttl.aggregation.packed_weights import is_transposed
from mttl.assembly.build_backbone import build_backbone, place_of
from mttl.checkpoints.model_tensors import backbone_parameters, fingerprint
from mttl.config.backbone_schema import Pretrained
from mttl.library.member_card import BaseModel
from mttl.models.backbone import is_decoder_only
from mttl.skills.targets import linear_features


def describe_base(name: str) -> BaseModel:
    """Load a model and return what a library notes of it.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    network = build_backbone(Pretrained(kind="pretrained", name=name))
    features = {path: linear_features(module) for path, module in network.named_modules()}
    return BaseModel(
        name=lasting_name(name),
        fingerprint=fingerprint(backbone_parameters(network), values=True),
        task_type="CAUSAL_LM" if is_decoder_only(network) else "SEQ_2_SEQ_LM",
        transposed=any(map(is_transposed, network.modules())),
        layers={path: sizes for path, sizes in features.items() if sizes is not None},
    )


def lasting_name(name: str) -> str:
    """Return the name of a model that means the same from every directory."""
    place = place_of(name)
    return str(Path(place).resolve()) if Path(place).is_dir() else name
