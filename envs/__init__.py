"""BabyAI: the levels of minigrid as fast vector environments with integer observations.

It needs only gymnasium, minigrid and numpy, and does not depend on the package mttl.
"""
