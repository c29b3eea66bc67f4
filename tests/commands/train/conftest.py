"""The run that the tests of the training command share."""

from helpers.tiny_run import config, folder, gym, whole  # noqa: F401
