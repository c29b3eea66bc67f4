"""What was written for others is read as they read it, and answers as it was meant to.

transformers reads a folder with ``config.json``, PEFT one with ``adapter_config.json``, and this
program a run. Names and shapes come first, on the meta device; then the answers to a probe.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoConfig

from mttl.build.saved_run import SavedRun
from mttl.errors import CheckpointError
from mttl.libraries import missing_libraries
from mttl.library.low_rank_change import LowRank
from mttl.merging.differences import grouped
from mttl.merging.weights_folder import Weights
from mttl.models.backbone import read_architecture
from mttl.reading import reason
from mttl.routing.context import Routing
from mttl.skills.skilled_model import SkilledModel

# Logits of the probe by task, or by what else answers.
Answers = Mapping[str, Float[Tensor, "1 L V"]]
N_TOKENS = 16
_log = logging.getLogger(__name__)


def check_written(folder: Path, network: Any, answers: Answers, like: Any = None) -> None:
    """Refuse what its readers would not take as it was meant.

    Args:
        folder: That is being written.
        network: The model that it holds; or below an adapter the base, left as it was; or the run,
            loaded from there.
        answers: That it should give; without any, names and shapes alone are compared.
        like: A folder of a model, whose own missing and unexpected tensors pass.

    Raises:
        CheckpointError: If tensors are missing, unexpected or of another shape, or answers differ
            by more than `rounding`; all are named.
    """
    if isinstance(network, SavedRun):
        _compare(task_answers(network), answers, network.model.backbone)
    elif (folder / "adapter_config.json").is_file():
        _check_adapter(folder, network, answers)
    else:
        known = _read_model(like, meta=True)[1] if like else ()
        _refuse(line for line in _read_model(folder, meta=True)[1] if line not in known)
        if answers:
            found = _read_model(folder)[0]
            differing = _differing(network.state_dict(), found.state_dict())
            _compare(dict.fromkeys(answers, logits(found)), answers, found, differing)


def rounding(network: Any) -> float:
    r"""Return the largest relative difference of logits that rounding explains.

    Each of n matrices multiplies values that were rounded to the ε of its type, and sums I terms in
    single precision, which adds :math:`\epsilon_{32} \sqrt I`. Independent errors add up in squares
    over terms and layers: :math:`\sqrt n \max(\epsilon, \epsilon_{32} \sqrt I)`.
    """
    widths = [value.shape[-1] for value in network.parameters() if value.dim() > 1]
    single = torch.finfo(torch.float32).eps * max(widths) ** 0.5
    return len(widths) ** 0.5 * max(torch.finfo(network.dtype).eps, single)


@torch.no_grad()
def logits(backbone: Any, ask: Callable[..., Any] | None = None) -> Float[Tensor, "1 L V"]:
    """Return the answer to the probe, a row of ids from all over the vocabulary.

    Args:
        backbone: A language model.
        ask: What is called; by default the model itself.
    """
    embeddings = backbone.get_input_embeddings().weight
    ids = torch.linspace(1, len(embeddings) - 1, N_TOKENS, device=embeddings.device).long()[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if backbone.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(1)
    return (ask or backbone)(**inputs)[0].float().cpu()


def mixture_answer(model: SkilledModel, mixing: Float[Tensor, "G H K"]) -> Float[Tensor, "1 L V"]:
    """Return what a model answers with one mixture, whatever the task."""
    task = torch.zeros(1, dtype=torch.long, device=mixing.device)
    with model.slot.use(Routing(task, mixing[:, None])):
        return logits(model.backbone)


def task_answers(run: SavedRun) -> dict[str, Tensor]:
    """Return what a run answers for each of its tasks."""
    ids = {task: run.task_ids([task]).to(run.device) for task in run.tasks}
    return {
        task: logits(run.model.backbone, lambda own=own, **given: run.model(own, **given))
        for task, own in ids.items()
    }


def changed_answer(network: nn.Module, changes: Mapping[str, LowRank]) -> Float[Tensor, "1 L V"]:
    """Return what a model would answer with changes of its weights."""

    def adding(part: LowRank) -> Callable[..., Tensor]:
        down, up = part.down.float(), part.up.float()
        return lambda _, given, found: found + (given[0].float() @ down @ up.t()).to(found.dtype)

    hooks = [
        network.get_submodule(path).register_forward_hook(adding(part))
        for path, part in changes.items()
    ]
    try:
        return logits(network)
    finally:
        for hook in hooks:
            hook.remove()


def _read_model(folder: Path, *, meta: bool = False) -> tuple[Any, list[str]]:
    """Read a model as transformers does; return also what is wrong with its tensors."""
    config = AutoConfig.from_pretrained(folder)
    named = getattr(transformers, (config.architectures or [""])[0], None)
    kind: Any = named or read_architecture(str(folder))[0]
    how = {"device_map": "meta"} if meta and not missing_libraries("accelerate") else {}
    network, report = kind.from_pretrained(
        folder, output_loading_info=True, ignore_mismatched_sizes=True, **how
    )
    missing = report["missing_keys"] & dict(network.named_parameters()).keys()
    shapes = [f"{n} {(*have,)} instead of {(*due,)}" for n, have, due in report["mismatched_keys"]]
    return network.eval(), _wrong(missing, report["unexpected_keys"], shapes)


def _check_adapter(folder: Path, base: Any, answers: Answers) -> None:
    if missing_libraries("peft"):
        _log.warning("the adapter was not checked: install peft, which reads it")
        return
    from peft import PeftModel, get_peft_model_state_dict

    written = Weights(folder / "adapter_model.safetensors")
    try:
        with warnings.catch_warnings(action="ignore"):
            loaded = PeftModel.from_pretrained(base, str(folder)).eval()
    except Exception as error:  # PEFT answers what it cannot read with errors of all sorts
        _refuse([reason(error)])
    due = get_peft_model_state_dict(loaded, save_embedding_layers=False)
    try:
        _refuse(_wrong(due.keys() - {*written}, {*written} - due.keys()))
        if answers:
            poly = loaded.active_peft_config.peft_type == "POLY"
            more = [
                {"task_ids": torch.tensor([task])} if poly else {} for task in range(len(answers))
            ]
            found = [logits(base, partial(loaded, **one)) for one in more]
            _compare(
                dict(zip(answers, found, strict=True)), answers, base, _differing(written, due)
            )
    finally:
        getattr(loaded.base_model, "unload", lambda: None)()
        vars(base).pop("peft_config", None)


def _compare(found: Answers, answers: Answers, network: Any, differing: Sequence[str] = ()) -> None:
    errors = {task: float((found[task] - due).norm() / due.norm()) for task, due in answers.items()}
    most = rounding(network)
    off = [f"{task} by {error:.1e}" for task, error in errors.items() if not error <= most]
    causes = {"answers off": off, "tensors that differ": differing if off else ()}
    if off:
        _refuse([*grouped(causes), f"rounding explains {most:.1e} of the logits"])


def _differing(found: Mapping[str, Tensor], due: Mapping[str, Tensor]) -> list[str]:
    return [name for name, value in due.items() if not torch.equal(found[name], value.cpu())]


def _wrong(
    missing: Iterable[str], unexpected: Iterable[str], shapes: Sequence[str] = ()
) -> list[str]:
    causes = {"missing": sorted(missing), "unexpected": sorted(unexpected)}
    return grouped(causes | {"of another shape": sorted(shapes)})


def _refuse(problems: Iterable[str]) -> None:
    if lines := [*problems]:
        raise CheckpointError(
            "what was written is not read as it was meant, and was removed:\n" + "\n".join(lines)
        )
