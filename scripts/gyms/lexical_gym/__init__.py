"""The lexical gym: text-to-text tasks derived from lexical data inside Python packages.

From data to disk, one file each: `sources` reads the packages, `words` filters and groups their
words, `inflection`, `derivation`, `sounds`, `quantities` and `dates` turn them into examples,
`tasks` is the table of tasks, `sample` draws the rows, `readme` and `gym` render the files. The
rest is in `derived_gym`.
"""
