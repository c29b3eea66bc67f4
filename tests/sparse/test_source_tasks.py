"""Sparse fine-tuning with a head against the published procedure, written plainly."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification

from mttl.data.encode import PromptPrefix
from mttl.data.headed import HeadedCollator, HeadedEncoder
from mttl.heads.task_heads import TaskHeads
from mttl.heads.token_head import TokenHead
from mttl.models.backbone import freeze_unread, load_tokenizer
from mttl.sparse.composition import SparseComposition
from mttl.sparse.lottery_settings import LotterySettings
from mttl.sparse.lottery_ticket import LotteryTicket
from mttl.sparse.objectives import SourceTasks, TaskObjective
from mttl.sparse.skill_file import SparseChange, SparseSkill, digest
from mttl.tasks.head_form import HeadForm

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIG = BertConfig(**SIZES, **NO_DROPOUT, vocab_size=384, intermediate_size=24, num_labels=3)
TAGS, LR, STEPS, DENSITY = ["A", "B", "O"], 1e-2, (4, 3), 0.1
TEXTS = [
    [("one two", "A B"), ("three", "O"), ("a bb ccc", "B O A")],
    [("four", "B"), ("x one", "O A")],
]
TOKENIZER = load_tokenizer("byte")


def encoded(part, form):
    encoder, none = HeadedEncoder(TOKENIZER, 40), PromptPrefix("")
    rows = [(encoder.encode(form, text, none)[0]._asdict(), tags) for text, tags in part]
    return [{**row, "references": [tags], "task_id": 0} for row, tags in rows]


def random_skill(model, seed):
    """Return a skill that changes a tenth of two tensors."""
    generator, changes = torch.Generator().manual_seed(seed), {}
    for name in (
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.1.output.dense.bias",
    ):
        value = model.get_parameter(name).detach().flatten()
        places = (torch.rand(len(value), generator=generator) < 0.1).nonzero().flatten()
        values = 0.5 * torch.randn(len(places), generator=generator)
        shape = tuple(model.get_parameter(name).shape)
        changes[name] = SparseChange(shape, places, values, digest(value[places]))
    return SparseSkill(changes)


def theirs(model, head, maskable, parts, skills):
    """Train by the procedure of the authors' code; return the masks, the model and the end.

    Each source's skill is added before its pass and taken off after it, masks multiply gradients,
    and before the second phase all parameters, also those of the head, return to their start.
    """
    tagger = BertForTokenClassification(CONFIG)
    tagger.bert.load_state_dict(model.bert.state_dict())
    tagger.classifier.load_state_dict(head.output.state_dict())
    named = dict(tagger.named_parameters())
    trained = [name for name in named if name in maskable or name.startswith("classifier")]
    start = {name: value.detach().clone() for name, value in named.items()}
    masks = {name: torch.ones_like(named[name]) for name in maskable}
    n_rows = sum(map(len, parts))
    for phase, n_steps in enumerate(STEPS):
        optimizer = torch.optim.AdamW([named[name] for name in trained], lr=LR, weight_decay=0.0)
        for step in range(n_steps):
            optimizer.zero_grad()
            for part, skill in zip(parts, skills, strict=True):
                for sign in (1, -1):
                    for name, change in skill.changes.items() if skill else ():
                        named[name].data.view(-1)[change.indices] += sign * change.values
                    if sign > 0:
                        (loss(tagger, part) * len(part) / n_rows).backward()
            for name, mask in masks.items():
                if named[name].grad is not None:
                    named[name].grad *= mask
            optimizer.param_groups[0]["lr"] = LR * (1 - step / n_steps)
            optimizer.step()
        if phase == 0:
            changes = {name: (named[name].detach() - start[name]).abs() for name in maskable}
            flat = torch.cat([change.flatten() for change in changes.values()])
            least = flat.topk(round(DENSITY * len(flat))).values.min()
            masks = {name: (change >= least).float() for name, change in changes.items()}
            for name, value in named.items():
                value.data.copy_(start[name])
    return masks, start, {name: value.detach() for name, value in named.items()}


def loss(tagger, part):
    """Return the mean cross-entropy at the first bytes of words, which transformers computes."""
    ids, labels = [], []
    for text, tags in part:
        words = [TOKENIZER.encode(word, add_special_tokens=False) for word in text.split()]
        # A word after another starts with its blank.
        words = words[:1] + [TOKENIZER.encode(" ", add_special_tokens=False) + w for w in words[1:]]
        own, marks = [], []
        for word, tag in zip(words, tags.split(), strict=True):
            own += word
            marks += [TAGS.index(tag), *[-100] * (len(word) - 1)]
        ids.append([*own, 1])
        labels.append([*marks, -100])
    width = max(map(len, ids))
    inputs = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    wanted = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
    return tagger(input_ids=inputs, attention_mask=(inputs != 0).long(), labels=wanted).loss


@pytest.mark.parametrize("n_sources", [1, 2])
def test_both_phases_are_those_of_the_authors_code(n_sources):
    torch.manual_seed(3)
    model = BertForMaskedLM(CONFIG)
    head, form = TokenHead(16, TAGS, dropout=0.0), HeadForm(kind="tokens", labels=TAGS)
    freeze_unread(model)
    # The gradient of the keys' biases is rounding alone, which Adam enlarges.
    maskable = [n for n, x in model.named_parameters() if x.requires_grad and "key.bias" not in n]
    parts = TEXTS[:n_sources]
    skills = [random_skill(model, seed) for seed in range(2)] if n_sources > 1 else [None]
    masks, start, end = theirs(model, head, maskable, parts, skills)

    heads, fresh = TaskHeads([head]), copy.deepcopy(model)
    tasks = [TaskObjective(encoded(part, form), HeadedCollator(0), heads) for part in parts]
    objective = tasks[0]
    if n_sources > 1:
        changes = [skill.changes for skill in skills]
        objective = SourceTasks(model, list(zip(tasks, changes, strict=True)))
    sizes = {"full_steps": STEPS[0], "sparse_steps": STEPS[1], "batch_size": objective.n_rows}
    settings = LotterySettings(density=DENSITY, lr=LR, **sizes)
    ticket = LotteryTicket(model, maskable, objective, settings, heads)
    for _ in range(STEPS[0]):
        ticket.advance()
    assert torch.equal(head.output.weight, start["classifier.weight"])
    while ticket.phase != "done":
        ticket.advance()
    skill = ticket.skill()
    for name, mask in masks.items():
        found = skill.changes[name].indices.tolist() if name in skill.changes else []
        assert found == mask.flatten().nonzero().flatten().tolist()
    composition = SparseComposition(fresh)
    composition.apply("task", skill)
    # Sums in another order, which Adam's division may enlarge.
    near = {"atol": 2e-5, "rtol": 1e-4}
    for name in maskable:
        torch.testing.assert_close(fresh.get_parameter(name).detach(), end[name], **near)
    for name in ("weight", "bias"):
        own = skill.head[f"of_task.0.output.{name}"]
        torch.testing.assert_close(own, end[f"classifier.{name}"], **near)
        assert not torch.equal(own, start[f"classifier.{name}"])
