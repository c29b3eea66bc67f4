"""Parse sentences by a spaCy pipeline: one per line in, CoNLL-U out. Needs only spaCy.

    python silver_tagger.py PIPELINE < sentences.txt > silver.conllu

The last column has named entities (`B-LOC`, `I-LOC`, `O`). Relations have no subtypes (`obl` for
`obl:arg`), since languages have different ones. Sentences that the pipeline splits, or whose tree
is damaged, are left out.
"""

import sys

import spacy

pipeline = spacy.load(sys.argv[1], exclude=["lemmatizer"])
sys.stdin.reconfigure(encoding="utf-8")
sys.stdout.reconfigure(encoding="utf-8")
for doc in pipeline.pipe(line.strip() for line in sys.stdin):
    roots = [word for word in doc if word.head == word]
    if len(roots) != 1 or any(word.is_space or not word.pos_ or not word.dep_ for word in doc):
        continue
    for word in doc:
        head = 0 if word.head == word else word.head.i + 1
        relation = "root" if head == 0 else word.dep_.lower().split(":")[0]
        entity = f"{word.ent_iob_}-{word.ent_type_}" if word.ent_type_ else "O"
        cells = [word.i + 1, word.text, "_", word.pos_, "_", "_", head, relation, "_", entity]
        print(*cells, sep="\t")
    print()
