"""The packages that a gym is built from."""

from importlib.metadata import PackageNotFoundError, version


class MissingSourceError(Exception):
    """A package, or the file expected inside it, is not installed."""


def source_versions(packages: tuple[str, ...], extra: str) -> dict[str, str]:
    """Return the installed version of every package.

    Args:
        packages: Their names.
        extra: The optional dependencies of the project that hold them.

    Raises:
        MissingSourceError: If one is not installed; all that are missing are named.
    """
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    missing = [name for name in packages if name not in versions]
    if missing:
        raise MissingSourceError(
            f"missing {', '.join(missing)}: the gym is built from data in these packages; "
            f"install them with `pip install -e '.[{extra}]'`."
        )
    return versions
