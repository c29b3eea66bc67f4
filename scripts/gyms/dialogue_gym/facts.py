"""Read facts from the Unicode CLDR in Babel, and from Python's table of time zones.

Babel 2.18 has the licence BSD-3-Clause, its data the licence Unicode-3.0. The IANA time zone
database is in the public domain.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from babel import Locale, UnknownLocaleError, localedata
from babel.core import get_global
from babel.languages import get_official_languages
from babel.numbers import get_territory_currencies
from derived_gym.split import split_of

Facts = dict[str, dict[str, str]]  # values by entity and attribute
_NAME = re.compile(r"[A-Z][A-Za-z' -]{2,10}")
_VALUE = re.compile(r"[A-Za-z][A-Za-z0-9':+ -]{1,13}")
_WINTER = datetime(2024, 1, 15)
_DAYS = {"Monday": 0, "Friday": 4, "Sunday": 6}


def read_facts() -> dict[str, Facts]:
    """Return the facts about the entities of train, dev and test; these are disjoint."""
    found: Facts = {}
    for read in (_territories, _languages, _cities):
        for entity, values in read().items():
            values = {name: value for name, value in values.items() if _VALUE.fullmatch(value)}
            if entity not in found and _NAME.fullmatch(entity) and len(values) > 1:
                found[entity] = values
    splits: dict[str, Facts] = defaultdict(dict)
    for entity in sorted(found):
        splits[split_of(f"entity:{entity}")][entity] = found[entity]
    return splits


def _territories() -> Facts:
    english, facts = Locale("en"), {}
    for code, zones in _zones():
        values = {"code": code}
        if money := get_territory_currencies(code):
            values["currency"] = english.currencies.get(money[0], "")
        if languages := get_official_languages(code):
            values["language"] = english.languages.get(languages[0], "")
            try:
                first = Locale.parse(f"{languages[0]}_{code}").first_week_day
                values["week"] = english.days["format"]["wide"][first]
            except UnknownLocaleError:
                pass
        if len(zones) == 1:
            values["clock"] = _offset(zones[0])
        facts[english.territories[code]] = values
    return facts


def _languages() -> Facts:
    names, facts = Locale("en").languages, {}
    for code in sorted(localedata.locale_identifiers()):
        if code in names:
            # What the language itself defines, without what it inherits.
            data: Mapping[str, Any] = localedata.load(code, merge_inherited=False)
            days, months = (_wide(data.get(kind)) for kind in ("days", "months"))
            words = {name: days.get(number, "") for name, number in _DAYS.items()}
            words |= {"January": months.get(1, ""), "name": data.get("languages", {}).get(code, "")}
            facts[names[code]] = words
    return facts


def _cities() -> Facts:
    names, facts = Locale("en").territories, {}
    for code, zones in _zones():
        for zone in zones:
            city = zone.rpartition("/")[2].replace("_", " ")
            facts[city] = {"country": names[code], "clock": _offset(zone)}
    return facts


def _zones() -> list[tuple[str, list[str]]]:
    """Return the time zones of each territory with a currency."""
    return [
        (code, zones)
        for code, zones in sorted(get_global("territory_zones").items())
        if code in get_global("territory_currencies")
    ]


def _wide(forms: Any) -> Mapping[int, str]:
    found = (forms or {}).get("format", {}).get("wide", {})
    return found if isinstance(found, dict) else {}


def _offset(zone: str) -> str:
    offset = ZoneInfo(zone).utcoffset(_WINTER)
    minutes = 0 if offset is None else int(offset.total_seconds()) // 60
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours}" + f":{rest:02}" * bool(rest)
