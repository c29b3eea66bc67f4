"""Compare ways to serve many tasks: requests per second of a burst that asks all of them.

    python scripts/benchmarks/serving.py [--size tiny] [--requests N ...] [--rounds 7] [--json FILE]

Requests of 16 tasks arrive together and in turn, 32 tokens in and 16 out. The floor answers task by
task, as one process per task does whose processes share one processor: weights into which the
task's skills are merged, and batches of its own requests only. PEFT has the same mixtures as 16
LoRA adapters and mixes them in a batch (`adapter_names`). Ours is the server's queue, and the whole
server over HTTP, whose client runs in the same process and counts. Text goes in and comes out
everywhere; batches hold at most 32 requests.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import Step, as_speed, parse_arguments, positive, report, run
from _models import N_TASKS, add_adapters, make_backbone

if TYPE_CHECKING:  # the parent process never loads these
    from mttl.inference.predictor import Predictor

FLOOR = "one process per task"
PEFT, QUEUE, SERVER = "PEFT adapter_names", "ours, queue", "ours, HTTP"
VARIANTS = (FLOOR, PEFT, QUEUE, SERVER)
LENGTH_IN, BATCH = 32, 32
TASKS = tuple(f"task{number}" for number in range(N_TASKS))
Answer = Callable[[Sequence[str], Sequence[str]], list[str]]


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Requests per second, by way to serve them.")
    parser.add_argument("--tokens", type=positive, default=16, help="of an answer (%(default)s)")
    parser.add_argument(
        "--requests", type=positive, nargs="+", default=[16, 128], help="at once (%(default)s)"
    )
    settings = parse_arguments(parser, VARIANTS, argv)
    rows: list[dict[str, Any]] = []
    for number in settings.requests:
        burst = argparse.Namespace(**vars(settings), burst=number)
        found = [as_speed(row, number) for row in run(build, burst)]
        rows += [{**row, "name": f"{row['name']}, {number} requests"} for row in found]
    title = f"serving, {settings.size}, {N_TASKS} tasks, {LENGTH_IN} in, {settings.tokens} out"
    report(rows, settings, title=title, unit="requests/s", columns={})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the call that answers a burst; it returns the answers, in order."""
    tasks = [TASKS[number % N_TASKS] for number in range(settings.burst)]
    texts = [
        " ".join(f"w{(31 * number + 7 * place) % 2000}" for place in range(LENGTH_IN - 2))
        for number in range(settings.burst)
    ]
    predictor = make_predictor(settings.size, settings.tokens)
    makers = {FLOOR: task_by_task, PEFT: adapter_names, QUEUE: queue, SERVER: server}
    answer = makers[variant](predictor, settings)
    return lambda: answer(tasks, texts), {}


def make_predictor(size: str, tokens: int) -> "Predictor":
    """Return a model of 16 tasks with random skills; no answer ends before its last token."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    from mttl.data.prompt_form import PromptForm
    from mttl.inference.predictor import Predictor

    backbone = make_backbone(size)
    model: Any = add_adapters(backbone, "ours H=1")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Large, so that answers of random weights depend on question and task.
        for parameters, scale in ((model.router.parameters(), 5.0), (skills_of(model), 0.7)):
            for parameter in parameters:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    endless(backbone)
    special = {"<pad>": 0, "</s>": 1}
    words = {f"w{number}": number for number in range(2, backbone.config.vocab_size)}
    plain = Tokenizer(WordLevel(special | words, unk_token="<pad>"))
    plain.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>")
    return Predictor(
        model=model.eval(),
        tokenizer=tokenizer,
        tasks=TASKS,
        form=PromptForm(prefix="none", max_input_length=LENGTH_IN, max_output_length=tokens),
        search={"max_new_tokens": tokens, "num_beams": 1, "do_sample": False},
    )


def endless(backbone: Any) -> None:
    """Let answers be words, and as long as they may be."""
    backbone.generation_config.eos_token_id = None
    backbone.generation_config.suppress_tokens = [0, 1]


def skills_of(model: Any) -> list[Any]:
    """Return the parameters of all skills."""
    layers = model.skilled_layers().values()
    return [parameter for layer in layers for parameter in layer.inventory.parameters()]


def task_by_task(predictor: "Predictor", settings: argparse.Namespace) -> Answer:
    """Answer each task by merged weights: always those of the first task, for speed is the same."""
    from mttl.merging.fold import fold, task_mixing

    plain: Any = fold(predictor.model, task_mixing(predictor.model.router, 0)).backbone
    generate = plain.generate

    def answer(tasks: Sequence[str], texts: Sequence[str]) -> list[str]:
        found = [""] * len(texts)
        for task in TASKS:
            own = [place for place, name in enumerate(tasks) if name == task]
            texts_of_task = [texts[place] for place in own]
            answers = generated(predictor, texts_of_task, lambda rows, **inputs: generate(**inputs))
            for place, text in zip(own, answers, strict=True):
                found[place] = text
        return found

    return answer


def adapter_names(predictor: "Predictor", settings: argparse.Namespace) -> Answer:
    """Answer mixed batches by PEFT, with the mixture of every task as an adapter."""
    from peft import PeftModel

    from mttl.merging.fold import task_mixing
    from mttl.peft_format.peft_folder import of_base, write_peft
    from mttl.peft_format.peft_lora import lora_adapter, mixture_adapter

    base: Any = make_backbone(settings.size)
    endless(base)
    model: Any = None
    for number, task in enumerate(TASKS):
        adapter = mixture_adapter(predictor.model, task_mixing(predictor.model.router, number))
        config, tensors = lora_adapter(adapter, transposed=False)
        with tempfile.TemporaryDirectory() as folder:
            write_peft(Path(folder), config | of_base("base", "SEQ_2_SEQ_LM"), tensors)
            if model is None:
                model = PeftModel.from_pretrained(base, folder, adapter_name=task)
            else:
                model.load_adapter(folder, adapter_name=task)
    model.eval()

    def answer(tasks: Sequence[str], texts: Sequence[str]) -> list[str]:
        return generated(
            predictor,
            texts,
            lambda rows, **inputs: model.generate(
                **inputs, adapter_names=[tasks[row] for row in rows]
            ),
        )

    return answer


def queue(predictor: "Predictor", settings: argparse.Namespace) -> Answer:
    """Answer by the server's queue, without the server."""
    from mttl.serving.generation_request import GenerationRequest, Piece
    from mttl.serving.request_queue import RequestQueue
    from mttl.serving.run_server import served_tasks

    waiting = RequestQueue(batch_size=BATCH, wait=0.005, most=10_000)
    served = served_tasks(dict.fromkeys(TASKS, predictor), most_tokens=1, truncate=False)

    def answer(tasks: Sequence[str], texts: Sequence[str]) -> list[str]:
        found = [""] * len(texts)
        arrived = threading.Semaphore(0)

        def send(place: int, piece: Piece) -> None:
            found[place] = piece.text
            arrived.release()

        for place, (task, text) in enumerate(zip(tasks, texts, strict=True)):
            wanted = GenerationRequest(
                task_id=TASKS.index(task),
                prompt=served[task].encode([text])[0][0],
                most_tokens=settings.tokens,
                send=lambda piece, place=place: send(place, piece),
            )
            waiting.put(predictor, [wanted])
        for _ in texts:
            arrived.acquire()
        return found

    return answer


def server(predictor: "Predictor", settings: argparse.Namespace) -> Answer:
    """Answer by the whole server; its clients are in this process, too."""
    import asyncio

    import openai
    import uvicorn

    from mttl.serving.application import Service, make_application
    from mttl.serving.request_queue import RequestQueue
    from mttl.serving.run_server import listen, served_tasks

    tasks = served_tasks(dict.fromkeys(TASKS, predictor), most_tokens=1, truncate=False)
    waiting = RequestQueue(batch_size=BATCH, wait=0.005, most=10_000)
    service = Service(tasks, waiting, most_bytes=1 << 20, seconds=600.0)
    config = uvicorn.Config(make_application(service), log_config=None, log_level="warning")
    listener = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    running = uvicorn.Server(config)
    threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True).start()

    async def ask(tasks: Sequence[str], texts: Sequence[str]) -> list[str]:
        async with openai.AsyncOpenAI(base_url=address, api_key="any", timeout=600) as client:
            calls = (
                client.completions.create(model=task, prompt=text)
                for task, text in zip(tasks, texts, strict=True)
            )
            return [reply.choices[0].text for reply in await asyncio.gather(*calls)]

    return lambda tasks, texts: asyncio.run(ask(tasks, texts))


def generated(predictor: "Predictor", texts: Sequence[str], generate: Any) -> list[str]:
    """Return answers in batches, as the project's own predictions are made."""
    from mttl.inference.predictor import answer_prompts

    return answer_prompts(
        generate,
        *(predictor.tokenizer, predictor.encoder.prompts(texts)),
        decoder_only=False,
        device=predictor.device,
        batch_size=BATCH,
        **predictor.search,
    )


if __name__ == "__main__":
    sys.exit(main())
