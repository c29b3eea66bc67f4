"""What the builders of the gyms in `data` share.

`item` is an example, `split` and `pools` keep underlying things on one side of every border,
`draws` draws numbers and dates, `blanks` makes texts plain, `baselines` scores trivial answers,
`packages` looks for the packages, `rows` renders files, `store` writes or compares them, and
`command` is the command line.
"""
