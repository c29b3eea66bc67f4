"""Read published dialogues: Wizard of Wikipedia, FaithDial, DSTC9 track 1 and DSTC11 track 5.

Readers yield a record per response: ``history`` (see `mttl.tasks.filters.turns`), ``knowledge``,
``response``, and for FaithDial ``label``. A `TaskError` for a malformed file has the place.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from mttl.io.errors import TaskError
from mttl.io.reading import read_json, shown
from mttl.tasks.rows import dstc_files, read_records, text_lines

_log = logging.getLogger(__name__)

DialogueFormat = Literal["wizard", "faithdial", "dstc"]
Records = Iterator[dict[str, Any]]

_NO_KNOWLEDGE = "no_passages_used"
_KINDS = {str: "a text that is not empty", list: "a list", dict: "an object", bool: "true or false"}
# Labels of BEGIN, of which the first that a response has counts.
_LABELS = {
    "hallucination": "hallucinated",
    "partial hallucination": "hallucinated",
    "uncooperative": "uncooperative",
    "generic": "generic",
    "entailment": "faithful",
}


def read_wizard(path: str | Path) -> Records:
    """Yield the Wizard's turns of a file of Wizard of Wikipedia, such as `train.json`.

    A file is a list of dialogues: ``chosen_topic``, and in ``dialog`` turns with ``speaker``
    (``0_Wizard``), ``text``, and of the Wizard ``checked_sentence``, a mapping whose first value is
    the knowledge. If the Wizard begins, the topic is the user's first turn. Turns without a checked
    sentence (also ``no_passages_used``) are skipped.

    References:
        Dinan et al., ICLR 2019, arXiv:1811.01241; https://parl.ai/projects/wizard_of_wikipedia.
        Layout: `parlai/tasks/wizard_of_wikipedia/agents.py` of facebookresearch/ParlAI.
    """
    n_turns = n_skipped = 0
    for number, dialogue in enumerate(_dialogues(path), 1):
        history: list[dict[str, str]] = []
        whole = f"{path}, dialogue {number}"
        for place, turn in _items(dialogue, "dialog", whole, "turn"):
            name, text = _get(turn, "speaker", str, place), _get(turn, "text", str, place)
            speaker = {"Wizard": "assistant", "Apprentice": "user"}.get(name.rpartition("_")[2])
            if speaker is None:
                problem = f"'speaker' is {shown(name)}, but it must end in Wizard or Apprentice"
                _refuse(place, problem, "correct the turn")
            if speaker == "assistant":
                n_turns += 1
                if not history:
                    topic = _get(dialogue, "chosen_topic", str, whole)
                    history.append({"speaker": "user", "text": topic})
                checked = list(_get(turn, "checked_sentence", dict, place).values())
                if not checked or checked[0] == _NO_KNOWLEDGE:
                    n_skipped += 1
                else:
                    yield {"history": [*history], "knowledge": checked[0], "response": text}
            history.append({"speaker": speaker, "text": text})
    _report(path, n_skipped, n_turns, "responses without a checked sentence")


def read_faithdial(path: str | Path) -> Records:
    """Yield the responses of a file of FaithDial, JSON or audited CSV.

    JSON is a list of dialogues, whose ``utterances`` have ``history``, ``knowledge``, ``response``,
    and optionally ``original_response``, ``BEGIN`` and ``VRM``. The label of ``response`` is
    ``faithful``. An original response is a further record, with the label by ``BEGIN``, unless that
    is faithful too. CSV has ``history`` (one turn), ``evidence`` or ``knowledge``, ``response``,
    ``BEGIN`` and ``VRM``, which label the response itself.

    References:
        Dziri et al., TACL 2022, arXiv:2204.10757; JSON: README.md of McGill-NLP/FaithDial. CSV:
        Dziri et al., NAACL 2022, arXiv:2204.07931; `data-audit/gold` of that repository.
    """
    if Path(path).suffix == ".csv":
        for number, row in enumerate(read_records(path), 1):
            place = f"{path}, record {number}"
            label = _label(_get(row, "BEGIN", str, place).split(","), place)
            knowledge = row.get("evidence") or row.get("knowledge")
            yield {**row, "knowledge": knowledge, "label": label}
        return
    for number, dialogue in enumerate(_dialogues(path), 1):
        for place, turn in _items(dialogue, "utterances", f"{path}, dialogue {number}", "turn"):
            kinds = {"history": list, "knowledge": str, "response": str}
            record = {key: _get(turn, key, kind, place) for key, kind in kinds.items()}
            record |= {key: turn[key] for key in ("BEGIN", "VRM") if key in turn}
            yield record | {"label": "faithful"}
            if (original := turn.get("original_response")) and original != record["response"]:
                label = _label(_get(turn, "BEGIN", list, place), place)
                if label not in ("", "faithful"):
                    yield record | {"response": original, "label": label}


def read_dstc(path: str | Path) -> Records:
    """Yield the responses to the knowledge-seeking turns of DSTC9 track 1 or DSTC11 track 5.

    ``path`` is `logs.json`: a list of dialogues, each a list of turns with ``speaker`` (``U`` or
    ``S``) and ``text``. `labels.json` next to it has, in the same order, ``target``, and if that is
    true ``response`` and ``knowledge``: a list of keys of `knowledge.json`, which is next to it or
    in the parent folder. Knowledge is the text of the documents after the entity's name. Turns
    whose ``target`` is false are skipped.

    References:
        Kim et al., SIGDIAL 2020, arXiv:2006.03533; `data/README.md` of
        alexa/alexa-with-dstc9-track1-dataset. Zhao et al., 2023, arXiv:2305.12091; `data/README.md`
        of alexa/dstc11-track5.
    """
    logs_path, labels_path, knowledge_path = dstc_files(path)
    logs, labels = (_dialogues(one) for one in (logs_path, labels_path))
    known = read_json(knowledge_path, TaskError, dict)
    if len(logs) != len(labels):
        numbers = f"'{logs_path}' has {len(logs)} dialogues, but '{labels_path}' {len(labels)}"
        raise TaskError(f"{numbers} labels; take both files from the same split")
    n_skipped = 0
    for number, (log, label) in enumerate(zip(logs, labels, strict=True), 1):
        place = f"{labels_path}, record {number}"
        if not _get(label, "target", bool, place):
            n_skipped += 1
            continue
        history = []
        for at, turn in _items({"turns": log}, "turns", f"{logs_path}, record {number}", "turn"):
            speaker = {"U": "user", "S": "assistant"}.get(_get(turn, "speaker", str, at))
            if speaker is None:
                problem = f"'speaker' is {shown(turn['speaker'])}, but it must be U or S"
                _refuse(at, problem, "correct the turn")
            history.append({"speaker": speaker, "text": _get(turn, "text", str, at)})
        snippets = [
            _snippet(known, each, at)
            for at, each in _items(label, "knowledge", place, "item of knowledge")
        ]
        response = _get(label, "response", str, place)
        yield {"history": history, "knowledge": snippets, "response": response}
    _report(logs_path, n_skipped, len(logs), "turns that need no knowledge")


def _snippet(known: Mapping[str, Any], keys: Any, place: str) -> str:
    """Return the text of a document, or of a sentence of a review, after the entity's name."""
    entity: Any = known
    for key in ("domain", "entity_id"):
        entity = _follow(entity, keys, key, place)
    if keys.get("doc_type") == "review":
        document = _follow(entity.get("reviews", {}), keys, "doc_id", place)
        text = _follow(document.get("sentences", {}), keys, "sent_id", place)
    else:
        documents = entity.get("faqs" if keys.get("doc_type") == "faq" else "docs", {})
        document = _follow(documents, keys, "doc_id", place)
        parts = ("question", "answer") if "question" in document else ("title", "body")
        text = " ".join(_get(document, part, str, place) for part in parts)
    return f"{entity['name']}: {text}" if entity.get("name") else text


def _follow(value: Any, keys: Any, key: str, place: str) -> Any:
    name = str(keys.get(key)) if isinstance(keys, dict) else ""
    if not isinstance(value, dict) or name not in value:
        problem = f"'knowledge.json' has no {key} {shown(name)}, which the label names"
        _refuse(place, problem, f"correct {shown(keys)}")
    return value[name]


def _label(begin: list[Any], place: str) -> str:
    """Return the label by BEGIN; empty if there is none."""
    found = {str(one).strip().lower() for one in begin} - {""}
    known = [label for name, label in _LABELS.items() if name in found]
    if found and not known:
        problem = f"'BEGIN' is {shown(begin)}, but it must have one of {', '.join(_LABELS)}"
        _refuse(place, problem, "correct the record")
    return known[0] if known else ""


def _dialogues(path: str | Path) -> list[Any]:
    """Return the list in a JSON file."""
    try:
        return read_json(path, TaskError, list)
    except TaskError as error:
        first = next(text_lines(Path(path)), "").strip()
        if not (first.startswith("{") and first.endswith("}")):
            raise
        raise TaskError(
            f"'{path}' has one object per line, but the format is one list of dialogues: write "
            "[…] with commas, or remove 'format' if a line is a record"
        ) from error


def _items(value: Any, key: str, place: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list that is not empty, each with its place."""
    items = _get(value, key, list, place)
    if not items:
        _refuse(place, f"'{key}' is an empty list", "remove the record")
    for number, item in enumerate(items, 1):
        yield f"{place}, {name} {number}", item


def _get(record: Any, key: str, kind: type, place: str) -> Any:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind) or (isinstance(value, str) and not value.strip()):
        problem = f"'{key}' is {shown(value)}, but it must be {_KINDS[kind]}"
        _refuse(place, problem, "correct or remove the record")
    return value


def _refuse(place: str, problem: str, advice: str) -> NoReturn:
    raise TaskError(f"{place}: {problem}; {advice}")


def _report(path: str | Path, n_skipped: int, n: int, what: str) -> None:
    if n_skipped:
        _log.info("'%s': skipped %d of %d, %s", path, n_skipped, n, what)


DIALOGUES: dict[str, Callable[[str | Path], Records]] = {
    "wizard": read_wizard,
    "faithdial": read_faithdial,
    "dstc": read_dstc,
}
