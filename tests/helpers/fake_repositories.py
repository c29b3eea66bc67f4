"""The client of the model hub, as far as runs are given away with it."""

import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest

from mttl.checkpoints import model_hub


class FakeRepositories:
    """What the client is asked to do, done on folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[object] = []

    @classmethod
    def used(cls, monkeypatch: pytest.MonkeyPatch, root: Path) -> "FakeRepositories":
        """Let runs be given to a folder rather than to the hub."""
        fake = cls(root)
        monkeypatch.setattr(model_hub, "HfApi", fake.client)
        monkeypatch.setattr(model_hub, "snapshot_download", fake.snapshot_download)
        return fake

    def client(self, token: str | None) -> "FakeRepositories":
        self.asked.append(token)
        return self

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> SimpleNamespace:
        self.asked.append((private, exist_ok))
        if name.startswith("others/"):
            raise OSError("403 Forbidden")
        full = name if "/" in name else f"me/{name}"
        (self.root / full).mkdir(parents=True, exist_ok=exist_ok)
        return SimpleNamespace(repo_id=full)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1?{commit_message}")

    def snapshot_download(
        self,
        name: str,
        *,
        revision: str | None,
        token: str | None,
        allow_patterns: list[str] | None = None,
    ) -> str:
        self.asked.append((revision, token))
        if not (self.root / name).is_dir():
            raise OSError(f"404 {name}")
        if allow_patterns is None:
            return str(self.root / name)
        copy = self.root / "snapshots" / name.replace("/", "--") / "0123abcd"
        for path in sorted((self.root / name).rglob("*")):
            inside = path.relative_to(self.root / name)
            if path.is_file() and any(fnmatchcase(str(inside), one) for one in allow_patterns):
                (copy / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy / inside)
        return str(copy)
