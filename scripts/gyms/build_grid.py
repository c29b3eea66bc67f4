"""Build data/grid, its partitions and the matrix of its factors from CLDR and number words.

    python scripts/gyms/build_grid.py [--out data/grid] [--check]

Exit codes: 0 done, 1 `--check` found differences, 2 something is missing or in the way.
"""

from derived_gym.command import GymRecipe, main


def recipe() -> GymRecipe:
    """Return how the grid is built."""
    from grid_gym.gym import N_PAIRS, GridGym
    from grid_gym.readme import TITLE
    from grid_gym.versions import installed, note

    installed()  # answers a package that is missing
    gym = GridGym()
    return GymRecipe(TITLE, N_PAIRS, gym.build, gym.settings, note)


if __name__ == "__main__":
    main(
        "grid", "grid", recipe, "Build the grid gym, its partitions and the matrix of its factors."
    )
