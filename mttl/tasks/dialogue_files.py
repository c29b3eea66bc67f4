"""Read published dialogues: Wizard of Wikipedia, FaithDial, DSTC9 track 1 and DSTC11 track 5.

Readers yield a record per response: ``history`` (see `mttl.tasks.filters.turns`), ``knowledge``,
``response``, and for FaithDial ``label``; templates check the texts. A `TaskError` for a malformed
file has the place.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from mttl.io.errors import TaskError, raised_as
from mttl.io.reading import read_json, shown
from mttl.tasks.rows import dstc_files, read_records, text_lines

_log = logging.getLogger(__name__)

DialogueFormat = Literal["wizard", "faithdial", "dstc"]
Records = Iterator[dict[str, Any]]

_NO_KNOWLEDGE = "no_passages_used"
_SPEAKERS = {"Wizard": "assistant", "Apprentice": "user", "S": "assistant", "U": "user"}
_MISTAKES = (LookupError, AttributeError, TypeError, ValueError)  # of malformed records
# Labels of BEGIN, of which the first that a response has counts.
_LABELS = {
    **dict.fromkeys(("hallucination", "partial hallucination"), "hallucinated"),
    **{"uncooperative": "uncooperative", "generic": "generic", "entailment": "faithful"},
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

    def responses(dialogue: Any) -> Records:
        nonlocal n_turns, n_skipped
        history: list[dict[str, str]] = []
        for turn in dialogue["dialog"]:
            speaker = _SPEAKERS[turn["speaker"].rpartition("_")[2]]
            if speaker == "assistant":
                n_turns += 1
                if not history:
                    history.append({"speaker": "user", "text": dialogue["chosen_topic"]})
                checked = next(iter(turn["checked_sentence"].values()), _NO_KNOWLEDGE)
                if checked == _NO_KNOWLEDGE:
                    n_skipped += 1
                else:
                    yield {"history": [*history], "knowledge": checked, "response": turn["text"]}
            history.append({"speaker": speaker, "text": turn["text"]})

    yield from _converted(f"{path}, dialogue", _dialogues(path), responses)
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

    def audited(row: Any) -> Records:
        knowledge = row.get("evidence") or row.get("knowledge")
        yield {**row, "knowledge": knowledge, "label": _label(row["BEGIN"].split(","))}

    def responses(dialogue: Any) -> Records:
        for turn in dialogue["utterances"]:
            record = {key: turn[key] for key in ("history", "knowledge", "response")}
            record |= {key: turn[key] for key in ("BEGIN", "VRM") if key in turn}
            yield record | {"label": "faithful"}
            if (original := turn.get("original_response")) and original != record["response"]:
                label = _label(turn["BEGIN"])
                if label not in ("", "faithful"):
                    yield record | {"response": original, "label": label}

    if Path(path).suffix == ".csv":
        return _converted(f"{path}, record", read_records(path), audited)
    return _converted(f"{path}, dialogue", _dialogues(path), responses)


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

    def response(pair: Any) -> Records:
        log, label = pair
        if label["target"]:
            turns = [{"speaker": _SPEAKERS[one["speaker"]], "text": one["text"]} for one in log]
            snippets = [_snippet(known, keys) for keys in label["knowledge"]]
            yield {"history": turns, "knowledge": snippets, "response": label["response"]}

    yield from _converted(f"{labels_path}, record", zip(logs, labels, strict=True), response)
    n_skipped = sum(not label["target"] for label in labels)
    _report(logs_path, n_skipped, len(logs), "turns that need no knowledge")


def _snippet(known: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    """Return the text of a document, or of a sentence of a review, after the entity's name."""
    with raised_as(TaskError, "knowledge.json", KeyError, text="has no {}".format):
        entity = known[keys["domain"]][str(keys["entity_id"])]
        if keys.get("doc_type") == "review":
            text = entity["reviews"][str(keys["doc_id"])]["sentences"][str(keys["sent_id"])]
        else:
            documents = entity["faqs" if keys.get("doc_type") == "faq" else "docs"]
            document = documents[str(keys["doc_id"])]
            parts = ("question", "answer") if "question" in document else ("title", "body")
            text = " ".join(document[part] for part in parts)
    return f"{entity['name']}: {text}" if entity.get("name") else text


def _label(begin: list[Any]) -> str:
    """Return the label by BEGIN; empty if there is none."""
    found = {str(one).strip().lower() for one in begin} - {""}
    known = [label for name, label in _LABELS.items() if name in found]
    if found and not known:
        raise TaskError(f"'BEGIN' is {shown(begin)}, but it must have one of {', '.join(_LABELS)}")
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


def _converted(place: str, items: Iterable[Any], convert: Callable[[Any], Records]) -> Records:
    """Yield the records of all items; errors have the place and the number of an item."""
    for number, item in enumerate(items, 1):
        with raised_as(TaskError, f"{place} {number}", *_MISTAKES, text=_mistake):
            yield from convert(item)


def _mistake(error: Exception) -> str:
    return str(error) if isinstance(error, TaskError) else f"it is malformed ({error!r})"


def _report(path: str | Path, n_skipped: int, n: int, what: str) -> None:
    if n_skipped:
        _log.info("'%s': skipped %d of %d, %s", path, n_skipped, n, what)


DIALOGUES = {"wizard": read_wizard, "faithdial": read_faithdial, "dstc": read_dstc}
