"""`mttl predict`."""

from mttl.commands.predict import main
from mttl.runtime.command import exit_with

if __name__ == "__main__":
    exit_with(main)
