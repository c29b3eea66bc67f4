"""A chain: a command that is hit by one fault after another, and then left to end."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kills.commands import SOURCES, Command
from kills.differences import differences
from kills.faults import Fault, Kind
from kills.material import write_material
from kills.process import Attempt, attempt

BAD = (
    *("lost work", "other weights", "other results", "leftovers"),
    *("traceback", "wrong status", "left running"),
)
KINDS: tuple[Kind | str, ...] = ("kill", "kill", "cut", "time", "time", "full", "readonly", "gone")


@dataclass
class Verdict:
    """What a chain showed.

    Attributes:
        command: Its name.
        n_struck: How many faults met it.
        problems: What went wrong, by column.
    """

    command: str
    n_struck: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)

    def blame(self, column: str, text: str) -> None:
        """Note a problem."""
        self.problems.setdefault(column, []).append(text)

    def lines(self) -> list[str]:
        """Return all problems, a line each."""
        return [f"{column}: {text}" for column, found in self.problems.items() for text in found]


class ChainFolders:
    """The folders of a test: the material, the results of undisturbed commands, the chains.

    Args:
        folder: Where.
        temporary: Folder of temporary files, on another file system if there is one.
    """

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary = folder.absolute(), temporary.absolute()
        self._undisturbed: dict[str, Attempt] = {}

    def prepare(self, commands: Sequence[Command]) -> None:
        """Make what commands work on.

        Raises:
            RuntimeError: If a command fails.
        """
        material = self.folder / "material"
        write_material(material)
        needed = list(commands)
        for source in reversed(SOURCES):
            if any(source.out in word for command in needed for word in command.arguments):
                needed.append(source)
        for source in SOURCES:
            if source in needed:
                self._whole(source, material)

    def undisturbed(self, command: Command) -> Attempt:
        """Run a command that nothing disturbs, or return how it went.

        Raises:
            RuntimeError: If it fails.
        """
        if command.name not in self._undisturbed:
            folder = self._fresh(self.expected(command))
            self._undisturbed[command.name] = self._whole(command, folder)
        return self._undisturbed[command.name]

    def expected(self, command: Command) -> Path:
        """Return where the undisturbed command ran."""
        return self.folder / "undisturbed" / command.name

    def run_chain(self, command: Command, number: int, seed: int, n_faults: int) -> Verdict:
        """Let faults hit a command until it has ended, and compare what is left.

        Args:
            command: The command.
            number: Of the chain.
            seed: Seed of the test.
            n_faults: At most so many; the command may have ended before.
        """
        rng = random.Random(f"{seed} {number} {command.name}")
        whole = self.undisturbed(command)
        folder = self._fresh(self.folder / "chains" / f"{number}-{command.name}")
        logs = self.folder / "logs" / folder.name
        temporary = self.temporary / folder.name
        verdict = Verdict(command.name)
        history: list[str] = []
        arguments: list[str] | None = command.arguments
        kept = 0.0
        for turn in range(n_faults):
            if arguments is None:
                break
            kind = rng.choice(KINDS)
            at = rng.randint(1, max(1, whole.changes // (1 + turn // 2)))
            fault = None if kind == "time" else Fault(kind, at, command.out)  # type: ignore[arg-type]
            after = rng.uniform(0, whole.seconds) if kind == "time" else None
            found = attempt(
                *(command.command, arguments, folder),
                **{"temporary": temporary, "logs": logs, "fault": fault, "kill_after": after},
            )
            history.append(f"{kind} {after:.2f} s" if after is not None else f"{kind} {at}")
            verdict.n_struck += found.struck
            story = f"{folder.name}: {', '.join(history)}"
            self._judge(verdict, found, kind, story)
            if kind == "gone" and found.struck:
                # What is half removed is removed by its user.
                shutil.rmtree(folder / command.out, ignore_errors=True)
                kept = 0.0
            now = command.kept(command, folder)
            if now < kept:
                verdict.blame("lost work", f"{story}: {now} of {kept}")
            kept = now
            if found.status == 0 and not found.struck:
                break
            if rng.random() < 0.3:
                folder = folder.rename(folder.with_name(f"{folder.name}~"))
                history.append("moved")
            arguments = command.again(command, folder)
        if (arguments := command.again(command, folder)) is not None:
            last = attempt(command.command, arguments, folder, temporary=temporary, logs=logs)
            story = f"{folder.name}: {', '.join(history)}, then undisturbed"
            self._judge(verdict, last, "none", story)
        self._compare(verdict, folder, command, temporary, history)
        if not verdict.problems:
            for used in (folder, logs, temporary):
                shutil.rmtree(used, ignore_errors=True)
        return verdict

    def _judge(self, verdict: Verdict, found: Attempt, kind: str, story: str) -> None:
        last = found.output.strip().splitlines()[-1:] or [""]
        if found.traceback:
            verdict.blame("traceback", f"{story}: {last[0]}")
        if found.left_running:
            verdict.blame("left running", f"{story}: {found.left_running} processes")
        if not found.struck:
            fine = found.status == 0
        elif kind in ("kill", "cut", "time"):
            fine = found.status == -9
        elif kind == "gone":
            fine = found.status in (1, 2)
        else:  # status 0 is fine where it can do without, which is compared
            fine = found.status in (0, 1, 2)
        if not fine:
            verdict.blame("wrong status", f"{story}: {found.status}: {last[0]}")

    def _compare(
        self,
        verdict: Verdict,
        folder: Path,
        command: Command,
        temporary: Path,
        history: list[str],
    ) -> None:
        weights, results, leftovers = differences(folder, self.expected(command))
        if temporary.is_dir():
            leftovers += [f"temporary {path.name}" for path in temporary.iterdir()]
        for column, found in zip(
            ("other weights", "other results", "leftovers"),
            (weights, results, leftovers),
            strict=True,
        ):
            if found:
                verdict.blame(
                    column, f"{folder.name}: {', '.join(history)}: {'; '.join(found[:4])}"
                )

    def _fresh(self, folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "material", folder)
        return folder

    def _whole(self, command: Command, folder: Path) -> Attempt:
        found = attempt(
            *(command.command, command.arguments, folder),
            temporary=self.temporary / "whole" / command.name,
            logs=self.folder / "logs" / command.name,
        )
        if found.status != 0:
            raise RuntimeError(f"'{command.name}' failed without a fault:\n{found.output[-2000:]}")
        return found
