"""Train an inventory of skills and a router jointly on many text-to-text tasks."""

import datetime
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from datasets import Dataset

from mttl.assembly.build_backbone import architecture, build_tokenizer, check_packable
from mttl.assembly.build_heads import task_heads
from mttl.assembly.build_router import with_factors
from mttl.assembly.load_tasks import fixed_model
from mttl.assembly.model import build_model, inventory_settings
from mttl.assembly.other_runs import with_digests
from mttl.assembly.saved_run import Built
from mttl.assembly.trainer import build_trainer, with_shared_batches
from mttl.checkpoints.run_callbacks import SaveBest
from mttl.checkpoints.run_folder import (
    RunFolder,
    check_still_there,
    settings_of,
    step_to_start_from,
)
from mttl.checkpoints.whole_tensors import is_sharded
from mttl.config.load import dump_config, with_settings
from mttl.config.schema import Config
from mttl.config.skills_schema import Fusion, kinds_of
from mttl.data.chosen_tasks import cache_folder, training_tasks
from mttl.data.data_module import TextToTextDataModule, numbers_of
from mttl.data.encode import check_positions
from mttl.data.lengths import with_lengths
from mttl.inference.task_options import missing_options, wanted_options
from mttl.io.files import write_text
from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.moe.parallel import make_whole
from mttl.runtime.child_process import forget_launcher
from mttl.runtime.command import make_console
from mttl.tasks.folder import Gym
from mttl.tasks.head_form import HeadForm
from mttl.training import report
from mttl.training.loggers import close_loggers, open_loggers, show_answers
from mttl.training.meta import MetaModule
from mttl.training.packing_check import check_packing
from mttl.training.predictions import predict, score, write_predictions, write_results
from mttl.training.separate import SeparateModule, separate_steps
from mttl.training.task_embeddings import embed_tasks
from mttl.training.text_to_text import TextToTextModule

_log = logging.getLogger(__name__)


def dated(config: Config, folder: RunFolder, *, resume: bool) -> Config:
    """Return the configuration with the date for the chat template, if it shows one."""
    day = config.data.date
    if config.data.template != "chat" or day is not None:
        return config
    if resume and folder.config.is_file():
        day = settings_of(folder.path).get("data.date")
    elif "strftime_now" in str(build_tokenizer(config.backbone).chat_template):
        day = str(datetime.date.today())
    return config.model_copy(update={"data": config.data.model_copy(update={"date": day})})


def fitted(config: Config) -> Config:
    """Return the configuration with the lengths of the data, if it asks for them."""
    sizes = architecture(config.backbone)[1]  # a wrong name is found before data are converted
    if not config.data.fit_lengths and config.data.max_cut is None:
        return config
    gym, tasks = training_tasks(config)
    positions = getattr(sizes, "max_position_embeddings", None)
    data = with_lengths(
        *(config.data, gym, tasks, build_tokenizer(config.backbone)),
        decoder_only=not sizes.is_encoder_decoder,
        n_positions=None if positions is None else positions - _prompt_length(config),
    )
    return config.model_copy(update={"data": data})


def _prompt_length(config: Config) -> int:
    kinds = kinds_of(config.skills)
    return sum(one.length for one in kinds if one.part_class.attachment_point == "embedding")


def with_tasks(config: Config) -> tuple[Config, Gym, list[str], dict[str, HeadForm]]:
    """Return the configuration with factors of its tasks, the gym, the tasks and their heads."""
    gym, tasks = training_tasks(config)
    heads = task_heads(gym, tasks, config)
    return with_factors(config, gym, tasks), gym, tasks, heads


def _dominance(sampler: str, rows: Dataset, tasks: Sequence[str]) -> str | None:
    """Return a note about a task with most of the rows of an epoch, if there is one."""
    counts = np.bincount(numbers_of(rows, "task_id"), minlength=len(tasks))
    largest, others = counts.max(), (counts.sum() - counts.max()) / max(len(tasks) - 1, 1)
    share = largest / counts.sum()
    if sampler not in ("proportional", "homogeneous") or share < 0.25 or largest < 3 * others:
        return None
    return f"{tasks[int(counts.argmax())]} has {100 * share:.0f} % of all rows; see data.sampler"


def build_module(config: Config, built: Built, metrics: Mapping[str, str]) -> TextToTextModule:
    """Return the Lightning module of a configuration."""
    kind = TextToTextModule if config.optim.meta is None else MetaModule
    if config.optim.separate:
        kind = SeparateModule
    return kind(
        *(built.model, built.tokenizer, metrics, config.optim, config.generation),
        max_output_length=config.data.max_output_length,
        loss=config.loss,
    )


def train(config: Config, *, resume: bool = False) -> None:
    """Train, score and save."""
    folder = RunFolder(Path(config.run.dir) / config.run.name)
    config = with_digests(fitted(dated(config, folder, resume=resume)))
    text = dump_config(config)
    config = with_shared_batches(config)
    pl.seed_everything(config.run.seed, verbose=False)
    console = make_console()

    # Prepare tasks, rows and model.
    config, gym, tasks, heads = with_tasks(config)
    metrics = {task: gym.metric(task) for task in tasks}
    samples = [(task, config.data.samples) for task in tasks]
    own_steps = separate_steps(config.optim, tasks, config.trainer.max_steps)
    options = wanted_options(gym, samples, config.generation.mode)
    for task, split, sample in product(tasks, config.data.evaluate, config.data.samples):
        rows = gym.rows(task, split, sample)  # finds malformed files before training
        if missing := missing_options(options.get(task, ()), rows):
            _log.warning("%s, %s rows: %s", task, split, missing)
    if options and config.generation.mode == "auto":
        with_settings(config, {"generation.mode": "both"})  # rejects what does not work together
    if config.data.packed_length is not None:
        check_packable(config.backbone, config.data.packed_length)
    built = build_model(config, tasks, heads)
    check_positions(
        getattr(built.model.backbone.config, "max_position_embeddings", None),
        decoder_only=is_decoder_only(built.model.backbone),
        max_input_length=config.data.max_input_length,
        max_output_length=config.data.max_output_length,
        prompt_length=_prompt_length(config),
    )
    if config.data.packed_length is not None:
        check_packing(built.model, config.data.packed_length)
    cache = str(cache_folder(config))
    data = TextToTextDataModule(
        *(gym, tasks, built.tokenizer, config.data.model_copy(update={"cache_dir": cache})),
        decoder_only=is_decoder_only(built.model.backbone),
        encoder=is_encoder(built.model.backbone),
        seed=config.run.seed,
        own_steps=own_steps,
        form=built.form,
    )
    step = step_to_start_from(folder, text, resume=resume)
    module = build_module(config, built, metrics)
    module.set_options(options, built.form, per_token=config.generation.per_token)
    if (penalty := config.optim.divergence) is not None:
        module.stay_near(*fixed_model(built, penalty.reference), penalty.weight)
    trainer = build_trainer(config, folder, built, resumed_step=step)

    # Until here, only the cache has been written.
    data.prepare_data()
    note = _dominance(config.data.sampler.kind, data.train_rows, tasks)
    if note is not None and trainer.is_global_zero and len(tasks) > 1:
        console.print(note, markup=False)
    embed_tasks(built.model, data)
    open_loggers(trainer, text)
    if trainer.is_global_zero:
        write_text(folder.config, text)
        if not heads:
            n_generated = len(tasks) - len(options)
            console.print(f"scored options: {len(options)} tasks; generated: {n_generated}")
        console.print(report.attachment_table(built.attachment, built.model, built.token_layers))
    trainer.fit(module, datamodule=data, ckpt_path=folder.last if step else None, weights_only=True)

    # Write scores, baselines, answers and the inventory.
    if folder.best.is_file():  # absent without validation
        best = module.load_weights(folder.best)
        if trainer.is_global_zero:
            (saved,) = (one for one in trainer.checkpoint_callbacks if isinstance(one, SaveBest))
            console.print(saved.kept(best), highlight=False, markup=False)
    results, baselines = [], {}
    for split in config.data.evaluate:
        rows = predict(trainer, module, data.evaluation_dataloader(split))
        results += score(rows, metrics, split, config.run.seed)
        given = gym, metrics, split, config.data, config.run.seed
        baselines[split] = report.baseline_results(*given)
        if trainer.is_global_zero:
            write_predictions(folder.predictions, rows, tasks, split)
        show_answers(trainer, split, tasks, rows)
    make_whole(built.model)
    close_loggers(trainer, results)
    if trainer.is_global_zero:
        write_results(folder.results, results)
        report.write_baselines(folder.baselines, baselines)
    if trainer.is_global_zero or is_sharded(built.model):  # all processes gather the shards
        shown = {task: gym.description(task) for task in tasks if config.data.descriptions}
        templates = {task: gym.template(task) for task in tasks}
        settings = inventory_settings(config, shown or None, options, templates, heads)
        built.save_skills(folder.skills, settings)
        if (groups := built.attachment.groups) and not built.model.router.weighs_tokens:
            attention = None
            if isinstance(config.aggregation, Fusion):
                module.to(trainer.strategy.root_device)  # the trainer has moved it to the CPU
                attention = report.attention_by_task(module, data.train_rows, data.collator())
            path = folder.plots / "routing.npz"
            report.write_routing(path, built.model.router, groups, tasks, attention=attention)
        if config.moe is not None and config.data.evaluate:
            rows = data.evaluation_dataloader(config.data.evaluate[0])
            report.write_token_routing(folder.plots / "token_routing.npz", module, rows)
    forget_launcher()
    if trainer.is_global_zero:
        check_still_there(folder)
        console.print(report.result_table(results, baselines))
        console.print(f"The run is in {folder.path}", highlight=False)
