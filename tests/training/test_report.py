from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table

from helpers.backbones import BACKBONES, fill, tiny_t5
from helpers.skills import spread
from mttl.config.data_schema import Data
from mttl.data.collate import TrainCollator, pad_id_of
from mttl.models.backbone import load_tokenizer
from mttl.routing import AverageRouter, PolytroponRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills
from mttl.skills.attention import AttendedInventory
from mttl.tasks.folder import Gym
from mttl.training.predictions import Result
from mttl.training.report import (
    attachment_table,
    attention_by_task,
    baseline_results,
    result_table,
    write_routing,
)
from mttl.training.text_to_text import TextToTextModule


def samples(*numbers: int) -> Data:
    return Data(dir="gym", partition="", samples=list(numbers))


def cells(table: Table) -> list[list[str]]:
    """Return the rows of a table as it is printed, without its frame."""
    console = Console(file=StringIO(), width=200, color_system=None)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in lines
        if line.startswith(("│", "┃"))
    ]


def result(task: str, split: str, score: float, sample: str = "100") -> Result:
    return Result(task, split, sample, 13, "mean" if task == "mean" else "EM", score, 4)


def test_what_was_attached() -> None:
    backbone = tiny_t5().requires_grad_(False)
    slot = RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, 3, rank=2),
        targets=["DenseReluDense.wi"],
        slot=slot,
        granularity="stack",
    )
    model = SkilledModel(backbone, PolytroponRouter(2, 5, 1, 3), slot)
    table = attachment_table(attachment, model)
    # 3 skills of rank 2 with 16 features in and 24 out, in two blocks.
    skills = 2 * 3 * 2 * (16 + 24)
    assert cells(table)[1:] == [
        ["encoder.block.*.layer.*.DenseReluDense.wi", "2", "16 -> 24", str(skills)],
        ["decoder.block.*.layer.*.DenseReluDense.wi", "2", "16 -> 24", str(skills)],
    ]
    router = 2 * 5 * 3
    total = sum(p.numel() for p in tiny_t5().parameters()) + 2 * skills + router
    assert table.caption == (
        "PolytroponRouter: 5 tasks, 3 skills, 1 heads, 2 routed groups. "
        "Skills are on 0 of 24 linear layers in attention and 4 of 8 linear layers in mlp. "
        f"{2 * skills + router} of {total:,} parameters are trained."
    )
    untrained = str(attachment_table(attachment, model, is_trained=False).caption)
    assert untrained.endswith(f"8 linear layers in mlp. {total:,} parameters.")


def test_scores_in_per_cent_beside_the_baselines_of_their_split() -> None:
    results = [
        *(result("a", "dev", 0.25), result("q[red]", "dev", 1.0), result("mean", "dev", 0.625)),
        *(
            result("a", "test", 0.1234),
            result("q[red]", "test", 0.0),
            result("mean", "test", 0.0617),
        ),
    ]
    copied = [result("a", "dev", 0.1), result("q[red]", "dev", 0.2), result("mean", "dev", 0.15)]
    assert cells(result_table(results, {"dev": {"copy": copied}})) == [
        ["task", "metric", "dev", "copy", "test"],
        ["a", "EM", "25.0", "10.0", "12.3"],
        ["q[red]", "EM", "100.0", "20.0", "0.0"],
        ["mean", "", "62.5", "15.0", "6.2"],
    ]


@pytest.fixture
def gym(tmp_path: Path) -> Gym:
    """Two tasks: one with samples 13 and 100, one with sample 100 only."""
    for task, sample, train, dev in (
        ("many", 100, "x\tno\nx\tno\n", "no\tno\nyes\tno\n"),
        ("many", 13, "x\tyes\ty\nx\tno\nx\tyes\n", "yes\tnay\tyes\nnay\tno\tnay\nno\tnay\tyes\n"),
        ("one", 100, "x\tb\nx\ta\n", "a\tb\n"),
    ):
        (tmp_path / task).mkdir(exist_ok=True)
        (tmp_path / task / f"{task}_16_{sample}_train.tsv").write_text(train)
        (tmp_path / task / f"{task}_16_{sample}_dev.tsv").write_text(dev)
    return Gym(tmp_path)


def test_baselines_are_scored_on_a_tasks_first_sample_among_those_asked_for(gym: Gym) -> None:
    metrics = {"many": "EM", "one": "EM"}
    found = baseline_results(gym, metrics, "dev", samples(13, 100), 7)
    assert list(found) == ["copy", "majority"]
    # Copying is right in two rows of three, "yes" too: any accepted answer counts.
    assert found["copy"] == [
        Result("many", "dev", "13", 7, "EM", pytest.approx(2 / 3), 3),
        Result("one", "dev", "100", 7, "EM", 0.0, 1),
        Result("mean", "dev", "all", 7, "mean", pytest.approx(1 / 3), 4),
    ]
    # Of answers that are equally frequent the first is taken: "b".
    assert [row.score for row in found["majority"]] == pytest.approx([2 / 3, 1.0, 5 / 6])
    other = baseline_results(gym, metrics, "dev", samples(100, 13), 7)["copy"][0]
    assert other == Result("many", "dev", "100", 7, "EM", 0.5, 2)


def test_routing_file(tmp_path: Path) -> None:
    attachment = attach_skills(
        tiny_t5(),
        lambda i, o: LoRAInventory(i, o, 3, n_heads=2),
        targets=["attention"],
        slot=RoutingSlot(),
        granularity="stack",
    )
    router = spread(PolytroponRouter(2, 4, 2, 3))
    write_routing(tmp_path / "routing.npz", router, attachment.groups, ["a", "b", "c", "ü"])
    arrays = np.load(tmp_path / "routing.npz", allow_pickle=False)
    named = [f"{group}/head {head}" for group in ("encoder", "decoder") for head in range(2)]
    assert arrays["groups"].tolist() == named
    assert arrays["tasks"].tolist() == ["a", "b", "c", "ü"]
    for row in range(4):
        group, head = divmod(row, 2)
        active = torch.sigmoid(router.get_parameter("logits")[group, :, head]).detach()
        expected = active / active.sum(1, keepdim=True)
        # The router adds 1e-12 to the sum.
        np.testing.assert_allclose(arrays["weights"][row], expected, rtol=1e-6)


ROWS = {
    "task_id": [0, 1, 0, 1, 0],
    "input_ids": [[5, 6], [7, 8, 9], [4], [10, 11], [9, 9, 9]],
    "labels": [[7, 1], [8, 1], [9, 9, 1], [5, 1], [6, 1]],
}


def module_of(family: str, granularity: str = "linear", *, fused: bool = True) -> TextToTextModule:
    backbone, slot = BACKBONES[family]().requires_grad_(False), RoutingSlot()

    def make(n_in: int, n_out: int):
        skills = LoRAInventory(n_in, n_out, 3, rank=2)
        return AttendedInventory(skills) if fused else skills

    attachment = attach_skills(
        backbone, make, targets=["attention"], slot=slot, granularity=granularity
    )
    model = SkilledModel(backbone, AverageRouter(len(attachment.groups), 2, 1, 3), slot)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    # In float64: a softmax of large scores turns their rounding into a relative error of a weight.
    return TextToTextModule(model.double(), load_tokenizer("byte"), {"a": "EM", "b": "EM"})


@pytest.mark.parametrize("granularity", ["linear", "model"])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_equals_a_loop_over_rows(family: str, granularity: str) -> None:
    module = module_of(family, granularity)
    collate = TrainCollator(pad_id_of(module.tokenizer), family == "llama")
    found = attention_by_task(module, Dataset.from_dict(ROWS), collate)
    model, kept = module.model.eval(), {}
    totals = torch.zeros(model.router.n_groups, 2, 3)
    for path, layer in model.skilled_layers().items():

        def keep(_, __, weights, path=path):
            kept[path] = weights.detach()

        layer.inventory.attention.register_forward_hook(keep)
    for task_id, inputs, labels in zip(*ROWS.values(), strict=True):
        texts = (
            {"input_ids": torch.tensor([inputs]), "labels": torch.tensor([labels])}
            if family == "t5"
            else {"input_ids": torch.tensor([inputs + labels])}
        )
        model(torch.tensor([task_id]), **texts)
        for path, layer in model.skilled_layers().items():
            totals[layer.group, task_id] += kept[path].sum((0, 1))
    # Float32 sums of some dozen numbers.
    np.testing.assert_allclose(found, totals / totals.sum(-1, keepdim=True), rtol=1e-5)
