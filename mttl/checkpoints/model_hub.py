"""Run folders on the Hugging Face model hub."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from mttl.io.errors import ConfigError, raised_as
from mttl.io.reading import reason

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def download(
    name: str,
    what: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    only: Sequence[str] | None = None,
) -> Path:
    """Return the local copy of a repository, or of its files that match ``only``.

    ``what`` describes the content in messages; the default token is that of `hf auth login`.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the folder '{name}' does not exist; the name of {what} on the hub has the form "
            "OWNER/NAME"
        )
    allowed = None if only is None else list(only)
    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=allowed))
    except Exception as error:  # the client's errors have no common base
        raise ConfigError(
            f"the folder '{name}' does not exist, and loading it from the model hub failed: "
            f"{reason(error)} To download it elsewhere, run `hf download {name} --local-dir DIR`"
        ) from error


def make_repository(name: str, *, private: bool, token: str | None) -> str:
    """Create a repository unless it exists; return its full name."""
    with _refused(name):
        return HfApi(token=token).create_repo(name, private=private, exist_ok=True).repo_id


def upload(folder: Path, name: str, *, token: str | None, message: str) -> str:
    """Upload a folder to a repository; return the address of the commit."""
    with _refused(name):
        api = HfApi(token=token)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        return str(done.commit_url)


def _refused(name: str) -> AbstractContextManager[None]:
    place = f"'{name}' could not be written to the model hub"
    login = "Log in with a token with write access (`hf auth login`, or token=...)"
    return raised_as(ConfigError, place, Exception, text=lambda error: f"{reason(error)} {login}")
