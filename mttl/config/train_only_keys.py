"""Settings that only training reads, and their counterparts in adaptation."""

from mttl.config.section import Section

# Training setting to adaptation setting, or to an empty string.
TRAIN_ONLY_KEYS = {
    **{"run.seed": "seeds", "trainer.max_epochs": "n_updates"},
    **{"optim.backbone_lr": "lr", "optim.token_router_lr": "lr"},
    **{"optim.schedule": "", "optim.warmup": "warmup"},
    **dict.fromkeys(("data.split", "data.validation", "data.evaluate", "data.sampler"), ""),
    **dict.fromkeys(("data.length_window", "data.token_budget", "data.packed_length"), ""),
    "data.global_batch_size": "batch_size",
}
# In these sections, adaptation ignores every setting that the section adapt has as well.
SECTIONS = ("optim", "data", "trainer")


def of_training(name: str, adapt: type[Section]) -> bool:
    """Return whether only training reads a setting."""
    section, _, field = name.partition(".")
    return _known_as(name) in TRAIN_ONLY_KEYS or (
        section in SECTIONS and field in adapt.model_fields
    )


def read_instead(name: str, adapt: type[Section]) -> str | None:
    """Return the adaptation setting that replaces a training setting, if any."""
    field = TRAIN_ONLY_KEYS.get(_known_as(name), name.partition(".")[2])
    return f"adapt.{field}" if field in adapt.model_fields else None


def _known_as(name: str) -> str:
    """Return a setting's first two components: ``data.sampler`` for ``data.sampler.kind``."""
    return ".".join(name.split(".")[:2])
