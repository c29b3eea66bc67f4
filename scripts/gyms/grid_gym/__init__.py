"""The grid gym: formatting tasks of CLDR and number words, operations by languages.

`things` draws what is written, the same for all languages; `dates`, `figures`, `phrases` and
`numerals` write it; `operations` is the table of operations, `cells` crosses it with the languages
and drops what is not a task, `sample` draws the rows, `partitions` splits the tasks in three ways,
`readme` and `gym` render the files. The rest is in `derived_gym`.
"""
