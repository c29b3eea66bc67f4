"""The lexical gym: text-to-text tasks derived from lexical data inside Python packages.

From data to disk, one file each: `sources` finds the packages, `words` filters and groups their
words, `inflection`, `derivation`, `sounds`, `quantities` and `dates` turn them into examples,
`tasks` is the table of tasks, `split` and `sample` draw the rows, `baselines`, `readme` and `gym`
render the files, and `store` writes or compares them.
"""
