"""What the routers of a run of members learn, or are shown, of the members' tasks."""

from mttl.assembly.build_backbone import build_tokenizer
from mttl.assembly.build_imported import Imported
from mttl.config.moe_schema import Phatgoose
from mttl.config.schema import Config
from mttl.data.chosen_tasks import open_gym
from mttl.data.data_module import TextToTextDataModule
from mttl.models.backbone import is_decoder_only
from mttl.peft_format.member_gates import train_gates
from mttl.routing.task.retrieval import RetrievalRouter
from mttl.runtime.gpus import device_of
from mttl.training.task_embeddings import show_tasks
from mttl.training.text_to_text import TextToTextModule


def prepare_members(config: Config, imported: Imported) -> None:
    """Train gates of members, or show their tasks' examples, where the router asks for it.

    Others need no gym, and none is opened.

    Raises:
        TaskError: If the gym lacks a task of a member.
    """
    model, gates = imported.model, None if config.moe is None else config.moe.router
    if not model.router.seen and not isinstance(gates, Phatgoose):
        return
    gym = open_gym(config.data)
    tokenizer = build_tokenizer(config.backbone)
    metrics = {task: gym.metric(task) for task in imported.tasks}
    data = TextToTextDataModule(
        *(gym, imported.tasks, tokenizer),
        config.data.model_copy(update={"cache_dir": None}),
        decoder_only=is_decoder_only(model.backbone),
        seed=config.run.seed,
    )
    show_tasks(model, data)
    if isinstance(model.router, RetrievalRouter):
        model.router.remember(model.router.get_buffer("shown_examples"))
    if isinstance(gates, Phatgoose):
        module = TextToTextModule(model, tokenizer, metrics).to(device_of())
        train_gates(module, data.train_dataloader(), n_steps=gates.gate_steps, lr=gates.gate_lr)
        module.cpu()
