"""REINFORCEMENT LEARNING: pure functions on what a policy saw, did and got.

Letters beyond those of `mttl.shapes`: `S` steps, `N` slots (environments of a task) or sequences,
`M` tokens of a mission (`L` of the longest), `E` distinct missions, `D` numbers of a memory, `C`
memories kept, `A` actions.
"""
