"""BabyAI: the levels of minigrid as fast vector environments with integer observations.

Works with gymnasium, minigrid and numpy alone, and knows nothing of the package that learns.
"""
