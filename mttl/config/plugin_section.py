"""Settings of custom classes, derived from their signatures."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler, ValidationInfo, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from mttl.config.section import Section, kind_of, models_in
from mttl.plugins.classes import Family, PluginError, find_class, make, parameters

# Contexts of a validation.
IMPORT: dict[str, str] = {"plugins": "import"}
LEAVE: dict[str, str] = {"plugins": "leave"}


class PluginSection(Section):
    """Settings of a custom class, which is named as `module:Class`."""

    model_config = ConfigDict(protected_namespaces=())
    plugin_class: ClassVar[type[Any]]

    kind: str
    """The class."""

    def make(self, **given: Any) -> Any:
        """Build an object of the class.

        Args:
            **given: Arguments of the program; those that the class does not declare are left out.
        """
        own = self.plugin_class
        settings = {
            name: getattr(self, name) for name in parameters(own) if name in type(self).model_fields
        }
        return make(own, given, {k: v for k, v in settings.items() if k not in given})


class _Unread(PluginSection):
    """A section whose class is not imported, because only other sections are needed."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class PluginKinds:
    """Annotation that lets a section name a custom class; put it after the built-in kinds."""

    family: Family
    base: type[Section] = Section

    def model_of(self, kind: str, *, trusted: bool = False) -> type[PluginSection]:
        """Return the settings of a class.

        Raises:
            PluginError: If there is none, or an argument can be no setting.
        """
        return _model(find_class(self.family, kind, trusted=trusted), kind, self.family, self.base)

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
                raise PluginError(f"kind ({kind}) must name {self.family.title}")
            return self.model_of(kind, trusted=info.context == IMPORT).model_validate(value)

        def dump(value: Any, handle: Any, info: Any) -> Any:
            return (
                value.model_dump(mode=info.mode)
                if isinstance(value, PluginSection)
                else handle(value)
            )

        return core_schema.with_info_wrap_validator_function(
            validate,
            known,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                dump, info_arg=True, schema=known
            ),
        )


def plugin_name(family: Family) -> Callable[[str, ValidationInfo], str]:
    """Return a validator of names, which imports custom classes."""

    def validate(name: str, info: ValidationInfo) -> str:
        if info.context != LEAVE and family.is_plugin(name):
            find_class(family, name, trusted=info.context == IMPORT)
        return name

    return validate


def plugin_kinds_in(annotation: Any, metadata: Any = ()) -> PluginKinds | None:
    """Return the annotation of a field about custom classes, if any."""
    found = [item for item in metadata if isinstance(item, PluginKinds)]
    if hasattr(annotation, "__metadata__"):
        found += [item for item in annotation.__metadata__ if isinstance(item, PluginKinds)]
    found += [own for part in get_args(annotation) if (own := plugin_kinds_in(part))]
    return found[0] if found else None


@cache
def _model(cls: type[Any], kind: str, family: Family, base: type[Section]) -> type[PluginSection]:
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)
    except (NameError, TypeError) as error:
        raise PluginError(f"'{kind}': the types of its arguments: {error}") from error
    fields: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, item in parameters(cls).items():
        if name in family.given:
            continue
        if name in base.model_fields or name == "kind" or hasattr(PluginSection, name):
            raise PluginError(f"'{kind}': its argument '{name}' needs another name")
        known = type(item.default) if item.default not in (inspect.Parameter.empty, None) else Any
        default = ... if item.default is inspect.Parameter.empty else item.default
        fields[name] = (hints.get(name, known), default)
        try:
            create_model("Setting", __base__=PluginSection, **{name: fields[name]})
        except PydanticUserError as error:
            shown = getattr(fields[name][0], "__name__", fields[name][0])
            raise PluginError(
                f"'{kind}': its argument '{name}' is of the type {shown}, which no configuration "
                "can hold; take numbers, texts, true or false, lists or mappings"
            ) from error
    bases = (PluginSection,) if base is Section else (PluginSection, base)
    made: Any = create_model(cls.__name__, __base__=bases, **fields)
    made.plugin_class = cls
    made.lacks = getattr(cls, "lacks", {})
    return made
