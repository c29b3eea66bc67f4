from helpers.gym_fixtures import crossfit, make_gym  # noqa: F401
