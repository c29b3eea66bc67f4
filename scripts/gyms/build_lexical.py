"""Build data/lexical and its partition from lexical data inside installed packages.

    python scripts/gyms/build_lexical.py [--out data/lexical] [--check]

Exit codes: 0 done, 1 `--check` found differences, 2 something is missing or in the way.
"""

from derived_gym.command import GymRecipe, main


def recipe() -> GymRecipe:
    """Return how the lexical gym is built."""
    from lexical_gym.gym import build, settings
    from lexical_gym.readme import TITLE
    from lexical_gym.tasks import TASKS

    return GymRecipe(TITLE, len(TASKS), build, settings)


if __name__ == "__main__":
    main("lexical", "gym", recipe, "Build the lexical gym and its partition.")
