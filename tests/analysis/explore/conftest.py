"""A browser, for the tests that need one."""

from helpers.browser import driver  # noqa: F401
