"""A toy gym, two toy backbones, and every shipped fragment on them with every command."""

import importlib
import io
import json
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from unittest import mock

import pytest
import torch
import transformers
from peft import PeftModel

from helpers.backbones import batch, fill
from helpers.gyms import TINY_LLAMA, TINY_T5, write_config, write_gym
from helpers.interruption import SignalAt, called_back
from helpers.serving import serving
from mttl.__main__ import ALL
from mttl.assembly.model import Built, load_run
from mttl.io import yaml12
from mttl.merging.fold import strip
from mttl.models.backbone import build_random
from mttl.runtime.command import run_command

TASKS = ("copy", "reverse", "number")
WORDS = ["ab", "bca"]
T5 = TINY_T5["config"] | {"num_heads": 4, "feed_forward_proj": "gated-gelu"}
LLAMA = TINY_LLAMA["config"] | {"num_attention_heads": 4}
SIZES = {"t5": T5, "llama": LLAMA, "t5-deep": T5 | {"num_layers": 3, "num_decoder_layers": 2}}
DEEP = ("skills/s4.yaml",)  # names layers by number
MEMBERS = ("arrow", "spectral", "phatgoose", "retrieval")
SETTINGS = {
    "router/phatgoose.yaml": ["moe.router.gate_steps=1"],
    "router/token_loramoe.yaml": ["moe.n_experts=2", "moe.router.top_k=2"],  # as the matrix
    "optim/maml.yaml": ["data.batch_size=4", "trainer.accumulate_grad_batches=2"],
    "optim/reptile.yaml": ["data.batch_size=4", "trainer.accumulate_grad_batches=2"],
}


class Refused(Exception):
    """A command ended with status 2, and said why."""


def _touch(figure: object, path: Path, **settings: object) -> None:
    path.touch() if isinstance(path, Path) else path.write(b"")  # type: ignore[attr-defined]


def command(name: str, *words: object, due: int = 0) -> None:
    """Run a command here, which ends with a status."""
    told, main = io.StringIO(), importlib.import_module(f"mttl.commands.{ALL[name]}").main
    drawn = mock.patch("matplotlib.figure.Figure.savefig", _touch)  # drawing takes seconds
    with redirect_stderr(told), redirect_stdout(io.StringIO()), drawn:
        status = run_command(lambda: main([str(word) for word in words]))
    text = " ".join(told.getvalue().split())
    if status == 2:
        raise Refused(text.rpartition("error: ")[2])
    assert status == due, text


class World:
    """The toys on disk, and runs that others need, made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        tasks = {
            "copy": ("EM", str),
            "reverse": ("ACC", lambda word: word[::-1]),
            "number": ("EM", lambda word: str(len(word))),
            "backwards": ("EM", lambda word: word[::-1]),
        }
        self.gym = write_gym(root / "gym", tasks, sizes=(6, 2, 2), unseen=["backwards"])
        rows = [f"{task},{i % 2},{(i + 1) % 2}" for i, task in enumerate((*TASKS, "backwards"))]
        names = "".join(f"{t},{m},kind={i % 2}\n" for i, (t, (m, _)) in enumerate(tasks.items()))
        (self.gym / "TASKS.csv").write_text("task,metric,factors\n" + names, encoding="utf-8")
        (root / "expert.csv").write_text("\n".join(["task,a,b", *rows]) + "\n")
        for name, sizes in SIZES.items():
            torch.manual_seed(0)
            model = build_random(name.removesuffix("-deep"), sizes)
            fill(model)
            model.save_pretrained(root / name)
            where = {"kind": "pretrained", "name": str(root / name), "tokenizer": "byte"}
            (root / f"{name}.yaml").write_text(yaml12.dump({"backbone": where}))
        self.parts: dict[tuple[str, ...], Path] = {}
        self.config = write_config(
            root / "toy.yaml",
            self.gym,
            data={"batch_size": 4, "expert_matrix": str(root / "expert.csv")},
            trainer={"max_steps": 2, "val_check_interval": 2},
            adapt={"max_steps": 1, "eval_every": 1, "batch_size": 2},
        )

    def made(self, backbone: str, *names: str) -> Path:
        """Return a run of files, trained once."""
        key = (backbone, *names)
        if key not in self.parts:
            run = Run(self, names, backbone, f"made{len(self.parts)}")
            run.train()
            self.parts[key] = run.folder
        return self.parts[key]

    def library(self, backbone: str) -> Path:
        folder = self.root / f"library-{backbone}"
        if not folder.exists():
            command("library", "add", folder, self.made(backbone, "router/private.yaml"))
        return folder


class Run:
    """One combination of files on a backbone, and what became of it."""

    def __init__(self, world: World, names: tuple[str, ...], backbone: str, label: str) -> None:
        self.world, self.names, self.given, self.label = world, names, backbone, label
        self.backbone = "t5-deep" if backbone == "t5" and {*DEEP} & {*names} else backbone
        before = ("router/token_top2.yaml",) if names[0].startswith("experts/") else ()
        toys = str(world.config), str(world.root / f"{self.backbone}.yaml")
        self.files = "+".join([*toys, *before, *names])
        self.folder = world.root / "runs" / label
        self.training = [word for name in names for word in SETTINGS.get(name, ())]
        self.settings = ["adapt.max_steps=1", "adapt.eval_every=1", "data.max_eval_rows=2"]
        self.settings.append("data.max_output_length=3")
        if "aggregation/fusion.yaml" in names:
            self.settings.append(f"aggregation.source={world.made(backbone, 'optim/adamw.yaml')}")
        self.member = next((m for m in MEMBERS if f"router/{m}.yaml" in names), None)

    def words(self, label: str | None = None) -> list[str]:
        name = f"run.name={label or self.label}"
        return ["-c", self.files, "-k", name, *self.training, *self.settings]

    @cached_property
    def built(self) -> Built:
        return load_run(self.folder)

    def check(self, column: str) -> None:
        """Do what a column says, and compare what it wrote."""
        if column != "train" and column != "plan" and not self.folder.exists():
            raise Refused("not trained")
        getattr(self, column.replace("-", "_"))()

    def train(self) -> None:
        if self.member is None:
            return command("train", *self.words())
        library = self.world.library(self.backbone)
        return command("library", "run", library, *self.words(), "--out", self.folder)

    def resume(self) -> None:
        words = self.words(f"{self.label}-again")
        builder = "mttl.commands.train_tasks.build_trainer"
        with pytest.MonkeyPatch.context() as patch, called_back(SignalAt(1), patch, builder):
            command("train", *words, due=130)
        command("train", *words, "--resume")
        again = load_run(self.folder.with_name(f"{self.label}-again"))
        whole, found = self.built.model.state_dict(), again.model.state_dict()
        assert whole.keys() == found.keys()
        wrong = [name for name, value in whole.items() if not torch.equal(value, found[name])]
        assert not wrong, wrong

    def adapt(self) -> None:
        command("adapt", "--from", self.folder, "-c", self.files, "--save", "-k", *self.settings)
        (self.adapted,) = self.folder.glob("adapt-*/models/*")
        loaded = load_run(self.adapted)
        assert loaded.tasks == ("backwards",)
        assert torch.isfinite(logits(loaded, ["backwards"])).all()

    def predict(self) -> None:
        asked, out = self.folder / "asked.tsv", self.folder / "answers.jsonl"
        asked.write_text("input\n" + "\n".join(WORDS) + "\n")
        given = ["--from", self.folder, "--task", "reverse", "--in", asked]
        command("predict", *given, "--out", out, "--format", "tsv")
        found = [line.split("\t")[-1].strip() for line in out.read_text().splitlines()[1:]]
        assert found == self.built.predict("reverse", WORDS), found

    def serve(self) -> None:
        with serving(self.built) as served:
            body = json.dumps({"model": "reverse", "prompt": WORDS[1]}).encode()
            request = urllib.request.Request(
                f"{served.address}/v1/completions", body, {"Content-Type": "application/json"}
            )
            answer = json.loads(urllib.request.urlopen(request).read())["choices"][0]["text"]
        assert answer.strip() == self.built.predict("reverse", WORDS[1:])[0]

    def merge_task(self) -> None:
        out = self.folder / "merged"
        command("merge-task", self.folder, "--task", "reverse", "--out", out)
        kind = transformers.AutoConfig.from_pretrained(out).architectures[0]
        merged, info = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys"))
        assert_same(merged.eval()(**batch(1)).logits, logits(self.built, ["reverse"]))

    def export(self) -> None:
        out = self.folder / "adapter"
        command("export", self.folder, "--task", "reverse", "--out", out)
        self.compare_adapter(out, {})

    def inventory(self) -> None:
        out = self.folder / "poly"
        command("export", self.folder, "--inventory", "--out", out)
        self.compare_adapter(out, {"task_ids": torch.tensor([TASKS.index("reverse")])})

    def compare_adapter(self, out: Path, more: dict[str, torch.Tensor]) -> None:
        if not (out / "adapter_model.safetensors").exists():
            return  # AdapterHub's, which the command has compared
        base = strip(load_run(self.folder).model).backbone
        adapter = PeftModel.from_pretrained(base, out).eval()
        due = logits(self.built, ["reverse"])
        found = adapter(**batch(1), **more).logits[:, -due.shape[1] :]  # after a prompt
        assert_same(found, due)

    def plot(self) -> None:
        out = self.folder / "drawn"
        command("plot", self.folder, "--out", out)
        assert list(out.glob("*.png"))

    def explore(self) -> None:
        command("explore", self.folder)
        page = (self.folder / "plots" / "explore.html").read_text()
        assert all(task in page for task in TASKS)

    def ablate(self) -> None:
        command("ablate", self.folder, "--rows", 1)
        assert (self.folder / "ablation" / "ablation.npz").exists()

    def add_tasks(self) -> None:
        if not hasattr(self, "adapted"):
            raise Refused("not adapted")
        out = self.folder.with_name(f"{self.label}-more")
        command("add-tasks", self.folder, "--adapted", self.adapted, "--out", out)
        more = load_run(out)
        assert more.tasks == (*self.built.tasks, "backwards")
        assert_same(logits(more, self.built.tasks), logits(self.built, self.built.tasks))
        assert_same(logits(more, ["backwards"]), logits(load_run(self.adapted), ["backwards"]))

    def plan(self) -> None:
        command("plan", *self.words())


@torch.no_grad()
def logits(built: Built, tasks: object) -> torch.Tensor:
    ids = built.task_ids(list(tasks))  # type: ignore[call-overload]
    return built.model.eval()(ids, **batch(len(ids))).logits


def assert_same(found: torch.Tensor, due: torch.Tensor) -> None:
    """Compare logits within the rounding of single precision."""
    torch.testing.assert_close(found, due, rtol=2e-4, atol=2e-4 * float(due.abs().max()))
