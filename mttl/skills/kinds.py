"""The registry of kinds of skills by name."""

from pkgutil import resolve_name

from mttl.plugins.parts import PARTS
from mttl.skills.inventory import USES, Inventory

KINDS: dict[str, type[Inventory]] = {
    kind: resolve_name(place)
    for family in ("skills", "policy_skills")
    for kind, place in PARTS[family].items()
}


def kind_for(use: str, kind: str) -> type[Inventory]:
    """Return the class of a kind; ValueError if it is unknown or lacks the use."""
    fit = [name for name, known in KINDS.items() if use in known.uses]
    if kind not in fit:
        raise ValueError(f"kind ('{kind}') cannot be {USES[use]}; choose one of {', '.join(fit)}")
    return KINDS[kind]
