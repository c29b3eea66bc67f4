"""Chat templates that ask as in training."""

import pytest
from jinja2 import TemplateError

from helpers.cards import joined_tokenizer
from helpers.chat_templates import CHATML, INSTRUCTION, byte_tokenizer
from mttl.data.prompt_form import PromptForm
from mttl.inference.model_card import question_template

ODD = 'a "b" \\ {{ c }} {% d %} ü 😀'
FORMS = {
    "plain": PromptForm(),
    "described": PromptForm(prefix="code", descriptions=True, task_descriptions={"a": ODD}),
    "chat": PromptForm(template="chat", prefix="none", system=ODD),
}


def ask(tokenizer, *turns: str, **given: str) -> list[int]:
    said = zip(("user", "assistant"), turns, strict=False)
    asked = [{"role": role, "content": text} for role, text in said]
    return tokenizer.apply_chat_template(asked, add_generation_prompt=True, **given)["input_ids"]


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("decoder_only", [False, True])
def test_prompts_and_conversations_are_those_of_training(form: str, decoder_only: bool) -> None:
    if form == "chat" and not decoder_only:
        return
    shown, tokenizer = FORMS[form], byte_tokenizer()
    template = question_template(tokenizer, {"a": shown}, decoder_only=decoder_only)
    encoder = shown.encoder(tokenizer, decoder_only=decoder_only)
    (prompt,) = encoder.prompts([shown.text("a", " x ")], [shown.prompt_prefix("a")])
    assert template.exact
    assert ask(template.tokenizer, " x ") == prompt
    assert ask(template.tokenizer, "x", "answer ") == [*prompt, *encoder.answers(["answer"])[0]]
    assert tokenizer.chat_template == CHATML  # the model's own is left alone
    with pytest.raises(TemplateError, match="the model answers one input at a time"):
        template.tokenizer.apply_chat_template([{"role": "user", "content": "x"}] * 2)


def test_several_tasks_are_named() -> None:
    tokenizer, form = byte_tokenizer(None), PromptForm()
    asked = question_template(tokenizer, {"a": form, 'b "': form}, decoder_only=True).tokenizer
    for task in ("a", 'b "'):
        (prompt,) = form.encoder(tokenizer, decoder_only=True).prompts([form.text(task, "x")])
        assert ask(asked, "x", task=task) == prompt
    for given in ({}, {"task": "c"}):
        with pytest.raises(TemplateError, match=r"set the task \(task=...\) to one of: a, b"):
            ask(asked, "x", **given)


def test_a_template_that_asks_the_same_is_kept() -> None:
    bare = PromptForm(template="chat", prefix="none")
    for own in (CHATML, INSTRUCTION):
        kept = question_template(byte_tokenizer(own), {"a": bare}, decoder_only=True)
        assert kept.tokenizer.chat_template == own
    dated = byte_tokenizer("{{ strftime_now('%d %b %Y') }}" + CHATML)
    form = PromptForm(template="chat", prefix="none", date="2024-07-26")
    kept = question_template(dated, {"a": form}, decoder_only=True)
    (prompt,) = form.encoder(dated, decoder_only=True).prompts(["x"])
    assert dated.decode(prompt).startswith("26 Jul 2024")
    assert ask(kept.tokenizer, "x") == prompt
    assert str(kept.tokenizer.chat_template).endswith(str(dated.chat_template))
    prefixed = PromptForm(template="chat")
    made = question_template(byte_tokenizer(), {"a": prefixed}, decoder_only=True)
    assert "[a] " in made.tokenizer.chat_template


def test_a_tokenizer_that_joins_the_line_break_has_none() -> None:
    tokenizer = joined_tokenizer()
    tokenizer.chat_template = CHATML
    found = question_template(tokenizer, {"a": PromptForm()}, decoder_only=True)
    assert not found.exact
    assert found.tokenizer.chat_template is None
    before, after = found.ends
    (prompt,) = PromptForm().encoder(tokenizer, decoder_only=True).prompts(["[a] it."])
    text = tokenizer(found.prompt_prefixes["a"] + "it.", add_special_tokens=False)["input_ids"]
    assert [*before, *text, *after] == prompt
    assert question_template(tokenizer, {"a": PromptForm()}, decoder_only=False).exact
