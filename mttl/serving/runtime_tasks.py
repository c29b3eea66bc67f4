"""Load and unload adapted tasks of a running server, at vLLM's addresses for LoRA adapters."""

from functools import partial
from pathlib import Path
from typing import ClassVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from torch import Tensor

from mttl.assembly.load_tasks import share_weights
from mttl.assembly.model import load_run
from mttl.io.errors import TaskError
from mttl.runtime.processes import device_of
from mttl.serving.application import Service
from mttl.serving.protocol import ApiError, Part, Text, parse_part
from mttl.serving.served_task import ServedTask


class LoadRequest(Part):
    """A task to load: its new name, and its folder."""

    neutral: ClassVar = {"load_inplace": (False,)}
    lora_name: Text
    lora_path: Text


class UnloadRequest(Part):
    """A task to unload."""

    neutral: ClassVar = {"lora_int_id": None}
    lora_name: Text


def add_loading(
    root: Path, run: str | None, backbone: str | None, service: Service, application: FastAPI
) -> None:
    """Let clients load adapted tasks below ``root``, and unload them.

    ``run`` and ``backbone`` are current folders, as for `load_run`.
    """
    loaded: set[str] = set()

    def check_new(name: str) -> None:
        if name in service.tasks:
            problem = f"there is a model '{name}' already; unload it, or choose another name"
            raise ApiError(400, problem, param="lora_name")

    async def load(request: Request) -> Response:
        asked = parse_part(LoadRequest, await service.body(request))
        check_new(asked.lora_name)
        folder = (root / asked.lora_path).resolve()
        if not folder.is_relative_to(root.resolve()):
            problem = f"'{asked.lora_path}' must be a folder below that of --load-from"
            raise ApiError(400, problem, param="lora_path")
        # Between batches, because loading changes global settings of PyTorch for a moment.
        read = partial(_load, folder, run, backbone, [*service.tasks.values()])
        task = await service.in_model_thread(request, read)
        check_new(asked.lora_name)  # another client may have been faster
        service.tasks[asked.lora_name] = task
        loaded.add(asked.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    async def unload(request: Request) -> Response:
        name = parse_part(UnloadRequest, await service.body(request)).lora_name
        service.task(name)
        if name not in loaded:
            raise ApiError(400, f"'{name}' was not loaded at run time", param="lora_name")
        loaded.remove(name)
        del service.tasks[name]  # accepted requests are still answered
        service.combinations.cache_clear()
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    for answer in (load, unload):
        path = f"/v1/{answer.__name__}_lora_adapter"
        application.post(path, dependencies=[Depends(service.check_key)])(answer)


def _load(
    folder: Path, run: str | None, backbone: str | None, others: list[ServedTask]
) -> ServedTask:
    built = load_run(folder, run=run, backbone=backbone)
    if len(built.tasks) != 1:
        raise TaskError(f"'{folder}' has {len(built.tasks)} tasks; name one adapted task")
    known: dict[str, list[Tensor]] = {}
    models = {id(task.predictor): task.predictor.model for task in others}
    for model in (*models.values(), built.model):
        share_weights(model, known)
    built.model.to(device_of())
    built.form.prompt_prefix(built.tasks[0])  # raises if a description is missing
    return ServedTask(built.tasks[0], built, others[0].most_tokens, others[0].truncate)
