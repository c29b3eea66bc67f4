"""Checks that the name of a model is a folder, or can be a name on the hub; without PyTorch."""

from pathlib import Path

from mttl.io.errors import ConfigError
from mttl.io.reading import reason


def check_model_name(key: str, name: str) -> None:
    """Raise a `ConfigError` for a folder that does not exist, naming the setting ``key``.

    A name that may be one on the hub is refused if the hub cannot be reached: the client of the hub
    would try every file again and again. Cached models need no hub.
    """
    if Path(name).is_dir():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"{key} ('{name}') is not a folder, and cannot be the name of a model on the hub. "
            f"{elsewhere(key)}"
        )
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import http_backoff

    cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    if constants.HF_HUB_OFFLINE or cached.is_dir():
        return
    try:
        http_backoff("HEAD", f"{constants.ENDPOINT}/api/models/{name}", max_retries=1, timeout=10)
    except Exception as error:  # the client's errors have no common base
        raise ConfigError(unreachable(key, name, reason(error))) from error


def unreachable(key: str, name: str, cause: str) -> str:
    """Return the message about a model that is neither a folder nor could be downloaded."""
    return (
        f"{key} ('{name}') is not a folder here and could not be loaded from the model hub: "
        f"{cause.removesuffix('.')}. Copy it here by `hf download {name} --local-dir DIR`. "
        f"{elsewhere(key)}"
    )


def elsewhere(key: str) -> str:
    """Return the advice to name another folder."""
    return f"Give the folder where it is now: {key}=DIR, or --backbone DIR of a trained run"
