"""The versions that the shipped folder is built with."""

from derived_gym.packages import source_versions

# The optional dependencies `grid` in pyproject.toml name the same.
PINNED = {"babel": "2.18.0", "num2words": "0.5.14"}


def installed() -> dict[str, str]:
    """Return the installed versions.

    Raises:
        MissingSourceError: If a package is not installed.
    """
    return source_versions(tuple(PINNED), "grid")


def note() -> str:
    """Return which packages have another version than the one that is pinned; often nothing."""
    other = [
        f"{name} is {found}, the gym is built with {PINNED[name]}"
        for name, found in installed().items()
        if found != PINNED[name]
    ]
    if not other:
        return ""
    return f"{'; '.join(other)}: other versions may hold other data; `pip install -e '.[grid]'`"
