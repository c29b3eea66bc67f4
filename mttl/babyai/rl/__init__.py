"""REINFORCEMENT LEARNING: pure functions of rollouts and demonstrations.

Axes in addition to those of `mttl.shapes`: `S` steps, `N` slots (environments of a task) or
sequences, `M` tokens of a mission (`L` of the longest), `E` distinct missions, `D` size of a
memory, `C` stored memories, `A` actions.
"""
