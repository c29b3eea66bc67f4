"""The section `router`: which task uses which skills."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mttl.config.plugin_section import PartSection, make_section, parts_of
from mttl.config.section import Section
from mttl.plugins.classes import ROUTERS


class AnyRouter(Section):
    """Settings of all routers."""

    granularity: Literal["model", "stack", "block", "layer", "linear"] = "linear"
    """Which layers share a routing row."""


if TYPE_CHECKING:
    Router: TypeAlias = PartSection
else:
    Router = parts_of(ROUTERS, AnyRouter)


def router_section(kind: str, **settings: Any) -> PartSection:
    """Return the section of a built-in router."""
    return make_section(ROUTERS, AnyRouter, kind, **settings)
