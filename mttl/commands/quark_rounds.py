"""Rounds of sampling, scoring and training.

References:
    Lu, Welleck, Hessel, Jiang, Qin, West, Ammanabrolu and Choi, *Quark: Controllable Text
    Generation with Reinforced Unlearning*, NeurIPS 2022, arXiv:2205.13636. There the fixed model
    reads inputs without codes; here it reads those of the trained model.
"""

import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mttl.adaptation.resumable_jobs import keep_settings
from mttl.assembly.model import Built, load_run
from mttl.config.load import dump_config, load_config, with_settings
from mttl.config.schema import Config
from mttl.data.chosen_tasks import training_tasks
from mttl.io import yaml12
from mttl.io.errors import ConfigError, MttlError
from mttl.io.files import new_folder, write_text
from mttl.metrics.crossfit import row_scores
from mttl.metrics.metric_names import split_metric
from mttl.runtime.child_process import with_parent
from mttl.runtime.command import make_console, say
from mttl.runtime.processes import device_of
from mttl.runtime.progress_bar import counting
from mttl.tasks.bins import bin_edges, codes_of, with_codes
from mttl.tasks.control import code_text, write_edges
from mttl.tasks.folder import Gym
from mttl.tasks.rows import JSON_LINES, Row

SCORE = "score"  # column of sampled answers
DRAWN = {"do_sample": True, "num_beams": 1, "top_k": 0, "temperature": 1.0}


def run_rounds(options: Namespace) -> None:
    """Run the missing rounds; the last one is trained in the folder ``options.out``."""
    out, last = Path(options.out), options.rounds
    config = load_config([f"{options.source}/config.yaml"], options.override, plugins=None)
    gym, tasks = training_tasks(config)
    base = load_run(options.source)
    base.require(answers="mttl quark", generates="mttl quark")
    if tasks != list(base.tasks) or config.data.split != "train":
        listed = ", ".join(base.tasks)
        raise ConfigError(f"-k must leave the tasks of the run ({listed}), and data.split: train")
    folder = out.with_name(f"{out.name}.rounds")
    if out.exists() and not folder.exists():
        raise ConfigError(f"--out '{out}' already exists; choose another path or remove it")
    names = "source", "task", "metric", "bins", "rounds", "divergence"
    facts = {"quark": {name: getattr(options, name) for name in names}}
    text, problem = dump_config(config) + yaml12.dump(facts), f"'{folder}' has other settings"
    keep_settings(folder / "settings.yaml", text, problem)
    codes = code_text({split_metric(options.metric)[0]: [0.0] * (options.bins - 1)})
    n_more = len(base.tokenizer(codes, add_special_tokens=False)["input_ids"])
    for number in range(1, last + 1):
        place = out if number == last else folder / str(number)
        if (place / "skills" / "meta.json").is_file():
            continue
        before = Path(options.source) if number == 1 else folder / str(number - 1)
        data = folder / f"data{number}"
        if not data.exists():
            policy = base if number == 1 else load_run(before)
            earlier = None if number == 1 else Gym(folder / f"data{number - 1}")
            torch.manual_seed(config.run.seed + number)
            with new_folder(data) as making:
                score = write_round(making, policy, gym, earlier, config, options)
            say(f"round {number} of {last}: samples score {100 * score:.1f} %", stderr=True)
        settings: dict[str, Any] = {
            **{"run.dir": str(place.parent), "run.name": place.name, "run.start": str(before)},
            **{"run.start_router": True, "data.dir": str(data), "data.tasks": None},
            "data.partition": {"train": tasks},
            "data.metrics": {**config.data.metrics, options.task: options.metric},
            "data.max_input_length": config.data.max_input_length + n_more,
            "data.max_cut": None,  # samples may end at the longest length
            "optim.divergence": {"weight": options.divergence, "reference": str(options.source)},
        }
        file = folder / f"{number}.yaml"
        write_text(file, dump_config(with_settings(config, settings)))
        command = [sys.executable, "-m", "mttl", "train", "-c", str(file)]
        command += ["--resume"] if place.is_dir() else []
        if subprocess.run(command, check=False, preexec_fn=with_parent()).returncode:
            raise MttlError(f"the training of round {number} failed; repeat the command to go on")
    say(f"The run is in {out}")


def write_round(
    folder: Path, policy: Built, gym: Gym, earlier: Gym | None, config: Config, options: Namespace
) -> float:
    """Write the tasks with the samples of all rounds and their codes; return the mean score."""
    task, metric, samples = options.task, options.metric, config.data.samples
    name, _ = split_metric(metric)
    rows = [(s, r) for s in samples for r in gym.rows(task, "train", s, config.data.max_rows)]
    policy.model.to(device_of())
    with counting(make_console(stderr=True), "sampling", len(rows)) as count:
        size: dict[str, Any] = {"batch_size": options.batch_size, "on_rows": count.advance}
        answers = policy.predict(task, [row.input for _, row in rows], **size, **DRAWN)
    references, sources = zip(*((row.outputs, row.source) for _, row in rows), strict=True)
    scores = row_scores(metric, answers, references, sources)
    pool = [(s, row) for s in samples if earlier for row in earlier.rows(task, "train", s)]
    for (s, row), answer, score in zip(rows, answers, scores.tolist(), strict=True):
        if answer:  # those of files must not be empty
            pool.append((s, Row(row.input, (answer,), {**row.columns, SCORE: score})))
    every = np.array([row.columns[SCORE] for _, row in pool])
    if not (edges := bin_edges(every, options.bins)):
        say(f"all samples score {every[0]:g}, so this round teaches nothing", stderr=True)
    codes = [{name: code} for code in codes_of(every, edges).tolist()]
    for own in policy.tasks:
        shutil.copytree(gym.directory / own, folder / own)
    if gym.table.exists():
        shutil.copyfile(gym.table, folder / gym.table.name)
    write_edges(folder / task, {**policy.form.edges(task), name: edges})
    for s in samples:
        file = folder / task / gym.file(task, "train", s).name
        file.unlink()
        own = [(row, code) for (at, row), code in zip(pool, codes, strict=True) if at == s]
        write_text(file.with_suffix(JSON_LINES), with_codes(own))
    return float(scores.mean())
