"""Trace passes of a model with fake weights to find the peak of its memory.

Nothing is computed: ids and masks are real, all other tensors have only a shape. Batches have the
maximum size of the settings; one row is a token shorter, so that masks are built.
"""

import inspect
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from mttl.config.schema import Config
from mttl.heads.label_head import LabelHead
from mttl.heads.task_heads import TaskHeads
from mttl.heads.tree_head import TreeHead
from mttl.inference.predictor import MIXED
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import cache_argument
from mttl.models.headed import headed_losses
from mttl.models.teacher_forcing import forced_logits
from mttl.routing.context import Routing
from mttl.routing.token import base
from mttl.routing.token.base import square_scores
from mttl.routing.token.masks import IGNORED
from mttl.skills.skilled_model import SkilledModel
from mttl.training.loss import answer_losses, global_mean
from mttl.training.packing_check import evaluating

MERGED, GRADIENTS, CACHE = "merged skills", "gradients", "cache"


class PeakMemory(TorchDispatchMode):
    """Mode that counts every tensor created by an operation until it is freed.

    With fake tensors nothing is computed or allocated. If a shape depends on data, experts receive
    equal shares of the tokens, masks keep everything, and conditions are false. ``known`` tensors
    are not counted.
    """

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.live: Counter[str] = Counter()  # bytes by kind
        self.at_peak: Counter[str] = Counter()  # bytes by kind at the peak
        self.peak = 0  # largest total
        self._kinds = {id(tensor.untyped_storage()): "" for tensor in known}
        self._held = [tensor.untyped_storage() for tensor in known]  # keeps their ids unique
        self._total = 0
        self._kind = "activations"

    @contextmanager
    def counting(self, kind: str) -> Iterator[None]:
        """Context manager: count new tensors as ``kind``."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def call(self, tensor: Tensor, kind: str) -> None:
        """Count a tensor as ``kind`` from now on."""
        storage = tensor.untyped_storage()
        before = self._kinds.get(id(storage))
        if before:
            self.live[before] -= storage.nbytes()
            self.live[kind] += storage.nbytes()
            self._kinds[id(storage)] = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count its new tensors."""
        known = _VALUES.get(func.overloadpacket)
        if known is not None and any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(args)):
            result = known(func, *args, **(kwargs or {}))
        else:
            result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        if self._total > self.peak:
            self.peak, self.at_peak = self._total, self.live.copy()
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, n_bytes = id(storage), storage.nbytes()
        if key in self._kinds:
            return
        self._kinds[key] = self._kind
        self.live[self._kind] += n_bytes
        self._total += n_bytes
        weakref.finalize(storage, self._forget, key, n_bytes)

    def _forget(self, key: int, n_bytes: int) -> None:
        self.live[self._kinds.pop(key)] -= n_bytes
        self._total -= n_bytes


def _even_counts(func: Any, values: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    """Return counts as if values were evenly distributed, with the correct sum."""
    return torch.bincount(torch.arange(values.numel()) % max(minlength, 1), minlength=minlength)


def _indexed(func: Any, tensor: Tensor, indices: Any, *rest: Any) -> Any:
    masks = [isinstance(i, Tensor) and i.dtype is torch.bool for i in indices]
    pairs = zip(indices, masks, strict=True)
    return func(tensor, [torch.arange(len(i)) if mask else i for i, mask in pairs], *rest)


_VALUES: dict[Any, Any] = {
    torch.ops.aten.bincount: _even_counts,
    torch.ops.aten.nonzero: lambda func, values: func(torch.ones(values.shape)),
    torch.ops.aten._local_scalar_dense: lambda func, value: value.dtype.is_floating_point * 0.0,
    torch.ops.aten.index: _indexed,
    torch.ops.aten.index_put: _indexed,
    torch.ops.aten.index_put_: _indexed,
    torch.ops.aten._index_put_impl_: _indexed,
}


def training_bytes(model: SkilledModel, config: Config) -> dict[str, int]:
    """Return the peak memory of a training step besides weights and optimizer, by kind."""
    data, trained = config.data, [p for p in model.parameters() if p.requires_grad]
    n_in, n_out = data.max_input_length, data.max_output_length
    decoder_only = is_decoder_only(model.backbone)
    batch = _ids(data.batch_size, n_in + n_out if decoder_only else n_in)
    labels = torch.ones(data.batch_size, n_out, dtype=torch.long)
    if decoder_only:
        labels = torch.cat([torch.full((data.batch_size, n_in), IGNORED), labels], 1)
    batch["labels"] = labels
    if model.heads is not None:
        batch = _headed_batch(model.heads, data.batch_size, n_in)
    tasks = torch.arange(data.batch_size) % model.router.n_tasks
    with _counted(model) as counter:
        handles = [
            p.register_post_accumulate_grad_hook(lambda p: counter.call(p.grad, GRADIENTS))
            for p in trained
        ]
        # The second batch of a step has the gradients of the first.
        for _ in range(min(2, config.trainer.accumulate_grad_batches)):
            with _autocast(config):
                if model.heads is not None:
                    losses, targets, routing = headed_losses(model, batch)
                else:
                    routing = model.route(tasks, inputs=batch)
                    with model.slot.use(routing):
                        logits, targets, places = forced_logits(model.backbone, batch)
                    losses = answer_losses(logits, targets, places, config.optim.label_smoothing)
                    del logits
                loss = global_mean(losses, targets) + model.router.prior_loss()
                loss = loss + sum(routing.losses.values())
            del losses
            loss.backward()
        for parameter, handle in zip(trained, handles, strict=True):
            parameter.grad = None
            handle.remove()
    return dict(counter.at_peak)


@torch.no_grad()
def generation_bytes(model: SkilledModel, config: Config) -> dict[str, int]:
    """Return the peak memory of generation, or of scoring heads, besides weights, by kind."""
    data, n_beams = config.data, config.generation.num_beams
    backbone: Any = model.backbone
    cache: Any
    n_rows = data.eval_batch_size * n_beams
    prompts = _ids(data.eval_batch_size, data.max_input_length)
    tasks = torch.arange(data.eval_batch_size) % model.router.n_tasks
    if model.heads is not None:
        batch = _headed_batch(model.heads, data.eval_batch_size, data.max_input_length)
        with evaluating(model), _counted(model) as counter, _autocast(config):
            headed_losses(model, batch)  # reads the scores of answers, too
        return dict(counter.at_peak)
    with evaluating(model), _counted(model) as counter, _autocast(config):
        routing = model.route(tasks, inputs=prompts, expansion=n_beams, reuse_merged=True)
        _tell_tasks_apart(routing, tasks)
        with model.slot.use(routing):
            mask = prompts["attention_mask"].repeat_interleave(n_beams, 0)
            given: dict[str, Any] = {"attention_mask": mask, "use_cache": True}
            if is_decoder_only(backbone):
                cache = own = _cache(counter, backbone)
                name = "input_ids"
                first = prompts["input_ids"].repeat_interleave(n_beams, 0)
                n_read = data.max_input_length + data.max_output_length
                if "logits_to_keep" in inspect.signature(backbone.forward).parameters:
                    given["logits_to_keep"] = 1
            else:
                states = backbone.get_encoder()(**prompts).last_hidden_state
                given["encoder_outputs"] = BaseModelOutput(states.repeat_interleave(n_beams, 0))
                del states
                own, name = _cache(counter, backbone), "decoder_input_ids"
                cache = EncoderDecoderCache(own, _cache(counter, backbone))
                first, n_read = _ids(n_rows, 1)["input_ids"], data.max_output_length
            given[cache_argument(backbone)] = cache
            _choose(backbone(**given, **{name: first}).logits, n_beams)
            # Trace the last token, with all earlier ones in the cache.
            with counter.counting(CACHE):
                for layer in filter(lambda layer: layer.is_initialized, own.layers):
                    layer.keys = _long(layer.keys, n_read - 1)
                    layer.values = _long(layer.values, n_read - 1)
            if is_decoder_only(backbone):
                given["attention_mask"] = torch.ones(n_rows, n_read, dtype=torch.long)
            _choose(backbone(**given, **{name: first[:, :1]}).logits, n_beams)
            if n_beams > 1:
                cache.reorder_cache(torch.arange(n_rows))
    return dict(counter.at_peak)


def _headed_batch(heads: TaskHeads, n_rows: int, length: int) -> dict[str, Any]:
    """Return a batch in which every id is a word."""
    tasks, answers = torch.arange(n_rows) % len(heads.of_task), []
    for head in (heads.of_task[task] for task in tasks.tolist()):
        name, n_words = next(iter(head.labels), "0"), 1 if isinstance(head, LabelHead) else length
        arcs = [f"{place}:{name}" for place in range(n_words)]
        answers.append(arcs if isinstance(head, TreeHead) else [name] * n_words)
    starts = torch.arange(length).repeat(n_rows, 1)
    rows = {"task_ids": tasks, "references": [[" ".join(answer)] for answer in answers]}
    words = {"word_starts": starts, "labels": torch.zeros_like(starts)}
    return {**_ids(n_rows, length), **words, **rows}


@contextmanager
def _counted(model: SkilledModel) -> Iterator[PeakMemory]:
    """Context manager that counts memory, with merged skills as a separate kind."""
    counter = PeakMemory([*model.parameters(), *model.buffers()])
    inventories = [layer.inventory for layer in model.skilled_layers().values()]
    for inventory in inventories:

        def merge(weights: Tensor, own: Any = inventory.merge) -> Any:
            with counter.counting(MERGED):
                return own(weights)

        inventory.merge = merge
    solve, base.balanced_assignment = base.balanced_assignment, _even_assignment
    try:
        with counter:
            yield counter
    finally:
        base.balanced_assignment = solve
        for inventory in inventories:
            del inventory.merge


def _even_assignment(scores: Tensor) -> Tensor:
    """Allocate the memory of a balanced assignment without solving it."""
    square_scores(scores.detach().double())
    return torch.arange(len(scores)) % scores.shape[1]


def _tell_tasks_apart(routing: Routing, tasks: Tensor) -> None:
    """Give fake mixing weights distinct values, because skills group equal rows."""
    if isinstance(routing.mixing, FakeTensor):
        shape, dtype = routing.mixing.shape, routing.mixing.dtype
        numbers = (1 + tasks[: shape[1]]).to(dtype).view(1, -1, 1, 1)
        routing.mixing = numbers.expand(shape).contiguous()
        routing.weights = routing.mixing.unbind(0)


def _ids(n_rows: int, length: int) -> dict[str, Tensor]:
    ids = torch.ones(n_rows, length, dtype=torch.long)
    mask = ids.clone()
    if length > 1:
        mask[0, 0] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _autocast(config: Config) -> Any:
    dtype = MIXED.get(config.trainer.precision)
    return ExitStack() if dtype is None else torch.autocast("cpu", dtype)


def _cache(counter: PeakMemory, backbone: Any) -> Any:
    class CountedCache(DynamicCache):
        def update(self, *args: Any, **kwargs: Any) -> Any:
            with counter.counting(CACHE):
                return super().update(*args, **kwargs)

    return CountedCache(config=backbone.config.get_text_config(decoder=True))


def _long(tensor: Tensor, length: int) -> Tensor:
    n_rows, n_heads, _, size = tensor.shape
    return tensor.new_empty(n_rows, n_heads, max(length, 1), size)


def _choose(logits: Tensor, n_beams: int) -> None:
    """Allocate the tensors of `generate` for selecting a token."""
    scores = logits[:, -1, :].to(copy=True, dtype=torch.float32)
    if n_beams > 1:
        scores = scores.log_softmax(-1)
        scores = (scores + scores.new_zeros(len(scores), 1)).view(-1, n_beams * scores.shape[-1])
        scores.topk(2 * n_beams)
    else:
        scores.argmax(-1)
