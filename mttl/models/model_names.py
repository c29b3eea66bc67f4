"""Checks that a model is a folder, or can be one on the hub, before PyTorch is imported."""

from pathlib import Path

from mttl.io.errors import ConfigError
from mttl.io.reading import reason


def check_model_name(key: str, name: str) -> None:
    """Raise a `ConfigError`, with the setting ``key``, if a folder does not exist.

    An uncached name on the hub is refused if the hub cannot be reached: otherwise, its client would
    try again for each file.
    """
    if Path(name).is_dir():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        where = "is neither a folder nor a valid name of a model on the hub."
        raise ConfigError(f"{key} ('{name}') {where} {_advice(key)}")
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import http_backoff

    cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    if cached.is_dir():
        return
    try:
        http_backoff("HEAD", f"{constants.ENDPOINT}/api/models/{name}", max_retries=1, timeout=10)
    except Exception as error:  # the client's errors have no common base
        raise ConfigError(unreachable(key, name, reason(error))) from error


def unreachable(key: str, name: str, cause: str) -> str:
    """Return the message about a model that is neither a folder nor could be downloaded."""
    return (
        f"{key} ('{name}') is not a local folder and could not be loaded from the model hub: "
        f"{cause.removesuffix('.')}. Download it by `hf download {name} --local-dir DIR`. "
        f"{_advice(key)}"
    )


def _advice(key: str) -> str:
    return (
        f"Give a folder that `save_pretrained` of transformers wrote, such as data/backbone: "
        f"--backbone DIR, or {key}=DIR"
    )
