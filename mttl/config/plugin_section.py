"""Sections of parts, derived from the signatures of built-in and plug-in classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    create_model,
)
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from mttl.config.section import Section, kind_of, models_in
from mttl.io.errors import raised_as
from mttl.plugins.classes import Family, PluginError, find_class, make
from mttl.plugins.describe import NOTES, describe, described
from mttl.plugins.parts import PARTS

# Validation contexts.
IMPORT: dict[str, str] = {"plugins": "import"}
LEAVE: dict[str, str] = {"plugins": "leave"}


class PartSection(Section):
    """Settings of a part, derived from the signature of its class."""

    place: ClassVar[Any] = ""  # the class; ``module:Class`` for a built-in part
    own_settings: ClassVar[tuple[str, ...]] = ()  # arguments of the class

    if TYPE_CHECKING:
        kind: str

        def __getattr__(self, name: str) -> Any: ...

    @property
    def part_class(self) -> type[Any]:
        """The class, imported."""
        return resolve_name(self.place) if isinstance(self.place, str) else self.place

    def make(self, **given: Any) -> Any:
        """Build an object of the class; it receives the arguments of ``given`` it declares."""
        names = [name for name in self.own_settings if name not in given]
        return make(self.part_class, given, {name: _made(getattr(self, name)) for name in names})


def _made(value: Any) -> Any:
    """Return the object of a nested section; other values are returned unchanged."""
    if isinstance(value, PartSection) and value.place:
        return resolve_name(value.place)(**{name: _made(one) for name, one in value})
    return value


class PluginSection(PartSection):
    """Settings of a plug-in class, named as `module:Class`."""

    model_config = ConfigDict(protected_namespaces=())

    kind: str
    """The class."""


class _Unread(PluginSection):
    """A section whose class is not imported."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class PluginKinds:
    """Annotation that allows plug-in classes in a section; place it after the built-in kinds."""

    family: Family
    base: type[Section] = Section

    def model_of(self, kind: str, *, trusted: bool = False) -> type[PluginSection]:
        """Return the section of a class; raises a `PluginError` if the class is unsuitable."""
        return _custom(find_class(self.family, kind, trusted=trusted), kind, self.family, self.base)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        known = handler(source)
        names = [name for model in models_in(source) if (name := kind_of(model))]

        def validate(value: Any, handle: Any, info: ValidationInfo) -> Any:
            if isinstance(value, PluginSection):
                return value
            kind = value.get("kind") if isinstance(value, Mapping) else None
            if kind is None or kind in names or (names and not self.family.is_plugin(kind)):
                return handle(value)
            if info.context == LEAVE:
                return _Unread.model_validate(value)
            if not isinstance(kind, str):
                raise PluginError(f"kind ({kind}) must be the name of {self.family.title}")
            return self.model_of(kind, trusted=info.context == IMPORT).model_validate(value)

        def dump(value: Any, handle: Any, info: Any) -> Any:
            custom = isinstance(value, PluginSection)
            return value.model_dump(mode=info.mode) if custom else handle(value)

        written = core_schema.wrap_serializer_function_ser_schema(dump, info_arg=True, schema=known)
        return core_schema.with_info_wrap_validator_function(validate, known, serialization=written)


def plugin_name(family: Family) -> Callable[[str, ValidationInfo], str]:
    """Return a validator of names that imports plug-in classes."""

    def validate(name: str, info: ValidationInfo) -> str:
        if info.context != LEAVE and family.is_plugin(name):
            find_class(family, name, trusted=info.context == IMPORT)
        return name

    return validate


def plugin_kinds_in(annotation: Any, metadata: Any = ()) -> PluginKinds | None:
    """Return the `PluginKinds` annotation of a field, if any."""
    found = [item for item in metadata if isinstance(item, PluginKinds)]
    if hasattr(annotation, "__metadata__"):
        found += [item for item in annotation.__metadata__ if isinstance(item, PluginKinds)]
    found += [own for part in get_args(annotation) if (own := plugin_kinds_in(part))]
    return found[0] if found else None


@cache
def part_model(family: Family, kind: str, base: type[Section]) -> type[PartSection]:
    """Return the section of a built-in part without importing its class.

    ``base`` has the settings common to the family.
    """
    return _section(described(family.name)[kind], kind, base, PARTS[family.name][kind])


def part_models(family: Family, base: type[Section]) -> tuple[type[PartSection], ...]:
    """Return the sections of all built-in parts of a family."""
    return tuple(part_model(family, kind, base) for kind in PARTS[family.name])


def parts_of(family: Family, base: type[Section], *others: type[Section]) -> Any:
    """Return the union type of a family's parts, plug-ins included, and of ``others``."""
    return Annotated[
        Union[(*part_models(family, base), *others)],
        Field(discriminator="kind"),
        PluginKinds(family, base),
    ]


def make_section(family: Family, base: type[Section], kind: str, **settings: Any) -> Any:
    """Return the section of a built-in part with the given settings."""
    return part_model(family, kind, base).model_validate({"kind": kind, **settings})


def _section(
    found: Mapping[str, Any],
    kind: str | None,
    base: type[Section],
    place: Any,
    root: Any = PartSection,
) -> type[Any]:
    fields: dict[str, Any] = {} if kind is None else {"kind": (Literal[kind], ...)}
    for name, one in found["settings"].items():
        annotation = _decode(one["type"]) if isinstance(one["type"], dict) else one["type"]
        default = one.get("default", ...)
        if isinstance(default, dict) and hasattr(annotation, "model_validate"):
            default = annotation.model_validate(default)
        fields[name] = (annotation, Field(default, description=one["sentence"] or None))
    for name, value in found.get("section_defaults", {}).items():
        common = base.model_fields[name]
        annotation = Annotated[common.annotation, *common.metadata]  # type: ignore[valid-type]
        fields[name] = (annotation, Field(value, description=common.description))
    bases = (root, _Described) if base is Section else (root, base, _Described)
    made: Any = create_model(found["name"], __base__=bases, __doc__=found["sentence"], **fields)
    for name in NOTES:
        setattr(made, name, found.get(name, {}))
    made.place, made.own_settings = place, tuple(found["settings"])
    return made


class _Described(BaseModel):
    # Generated sections have no source; searching for it takes seconds.
    model_config = ConfigDict(use_attribute_docstrings=False)


def _decode(data: Mapping[str, Any]) -> Any:
    match data:
        case {"one_of": words}:
            return Literal[tuple(words)]
        case {"any": choices}:
            return Union[tuple(map(_decode, choices))]  # noqa: UP007 - of a tuple
        case {"section": place}:
            return _section(data, None, Section, place)
        case {"list": inside}:
            found: Any = list[_decode(inside)]  # type: ignore[misc]
        case {"mapping": inside}:
            return dict[str, _decode(inside)]  # type: ignore[misc]
        case {"type": name}:
            found = {"int": int, "float": float, "bool": bool, "str": str, "none": None}[name]
    bounds = {name: limit for name, limit in data.items() if name not in ("type", "list")}
    return Annotated[found, Field(**bounds)] if bounds else found


@cache
def _custom(cls: type[Any], kind: str, family: Family, base: type[Section]) -> type[PluginSection]:
    with raised_as(
        PluginError, f"'{kind}': cannot read the types of its arguments", NameError, TypeError
    ):
        found = describe(cls, family.given)
    for name, item in found["settings"].items():
        if name == "kind" or name in base.model_fields or hasattr(PluginSection, name):
            raise PluginError(f"'{kind}': rename its argument '{name}'; the name is reserved")
        try:
            TypeAdapter(item["type"])
        except PydanticUserError as error:
            shown = getattr(item["type"], "__name__", item["type"])
            raise PluginError(
                f"'{kind}': its argument '{name}' has the type {shown}, which a configuration "
                "cannot contain; use numbers, text, lists or mappings"
            ) from error
    return _section(found, kind, base, cls, PluginSection)
