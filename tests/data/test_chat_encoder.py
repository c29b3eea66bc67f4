"""Chats have the ids that transformers gives to the whole conversation."""

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from helpers.chat_templates import CHATML, INSTRUCTION, THOUGHTFUL, byte_tokenizer
from mttl.data.encode import PromptPrefix
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import ConfigError, TaskError

LENGTHS = {"max_input_length": 200, "max_output_length": 40}
QUESTIONS = ["the train", "[a] the other.", "naïve\n\ttest?"]
ANSWERS = ["the", "dev.", "two\nlines"]
TURNS = {"<extra_id_1>": "<|turn|>", "<extra_id_2>": "<|over|>"}


@pytest.fixture(scope="module")
def bpe(bart_like_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Puts tokens of its own around every text, which no chat may hold twice."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bart_like_tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in TURNS.values()])
    return tokenizer


def with_template(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    for word, token in TURNS.items():
        template = template.replace(word, token)
    tokenizer.chat_template = "{{ bos_token }}" + template
    return tokenizer


def chat(system: str | None, *turns: str) -> list[dict[str, str]]:
    said = list(zip(("user", "assistant"), turns, strict=False))
    said = [("system", system), *said] if system else said
    return [{"role": role, "content": text} for role, text in said]


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("template", [CHATML, INSTRUCTION, THOUGHTFUL])
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_prompt_and_answer_are_the_conversation(bpe, kind, template, system) -> None:
    tokenizer = byte_tokenizer(template) if kind == "byte" else with_template(bpe, template)
    form = PromptForm(template="chat", prefix="none", system=system, **LENGTHS)
    if system and template == INSTRUCTION:
        with pytest.raises(ConfigError, match=r"with a system text .*: no system text\. Name a"):
            form.encoder(tokenizer, decoder_only=True)
        return
    encoder = form.encoder(tokenizer, decoder_only=True)
    prompt_prefixes = [form.prompt_prefix("any")] * len(QUESTIONS)
    prompts, answers = encoder.prompts(QUESTIONS, prompt_prefixes), encoder.answers(ANSWERS)
    for row, (question, answer) in enumerate(zip(QUESTIONS, ANSWERS, strict=True)):
        whole = tokenizer.apply_chat_template(chat(system, question, answer))["input_ids"]
        assert [*prompts[row], *answers[row]] == whole
        asked = tokenizer.apply_chat_template(chat(system, question), add_generation_prompt=True)
        thought = "<think>\n\n</think>\n\n" if template == THOUGHTFUL else ""
        written = tokenizer(thought, add_special_tokens=False)["input_ids"]
        assert prompts[row] == [*asked["input_ids"], *written]
        assert encoder.stops[0] in answers[row]
        said = tokenizer.decode(answers[row], skip_special_tokens=True)
        assert said.strip() == answer


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("template", [CHATML, THOUGHTFUL])
def test_examples_are_turns_of_the_conversation(template: str, system: str | None) -> None:
    tokenizer = byte_tokenizer(template)
    form = PromptForm(template="chat", prefix="none", system=system, **LENGTHS)
    before = [] if system is None else [{"role": "system", "content": system}]
    n_ends = []
    for text in ("one", "one </s>"):  # what spells a special token is text
        examples = [[text, "two"], ["three", "four"]]
        shown = form.model_copy(update={"task_examples": {"a": examples}})
        encoder = shown.encoder(tokenizer, decoder_only=True)
        (prompt,) = encoder.prompts(["ab"], [shown.prompt_prefix("a")])
        n_ends.append(prompt.count(tokenizer.eos_token_id))
        if text == "one":
            whole = [*before, *chat(None, *examples[0]), *chat(None, *examples[1])]
            wanted = tokenizer.apply_chat_template(
                [*whole, *chat(None, "ab")], add_generation_prompt=True
            )["input_ids"]
            thought = "<think>\n\n</think>\n\n" if template == THOUGHTFUL else ""
            assert prompt == [*wanted, *tokenizer(thought, add_special_tokens=False)["input_ids"]]
    assert n_ends[0] == n_ends[1]


@pytest.mark.parametrize(
    "given",
    [{"system": " Be brief. "}, {"descriptions": True, "task_descriptions": {"a": "Be brief."}}],
)
def test_a_template_may_require_a_system_text(given: dict) -> None:
    required = "{% if messages[0].role != 'system' %}{{ raise_exception('say who') }}{% endif %}"
    tokenizer = byte_tokenizer(required + CHATML)
    form = PromptForm(template="chat", prefix="none", **given, **LENGTHS)
    encoder = form.encoder(tokenizer, decoder_only=True)
    (prompt,) = encoder.prompts(["ab"], [form.prompt_prefix("a")])
    (answer,) = encoder.answers(["c"])
    whole = tokenizer.apply_chat_template(chat("Be brief.", "ab", "c"))["input_ids"]
    assert [*prompt, *answer] == whole
    with pytest.raises(ConfigError, match="the chat template cannot be used: say who"):
        PromptForm(template="chat").encoder(tokenizer, decoder_only=True)


def test_what_is_too_long_is_cut_within_the_template() -> None:
    tokenizer = byte_tokenizer()
    before, after = "<extra_id_1>user\n", "<extra_id_2>\n<extra_id_1>assistant\n"
    around = len(tokenizer(before + after, add_special_tokens=False)["input_ids"])
    lengths = {"max_input_length": around + 9, "max_output_length": 6}
    for side, expected in (("end", "[a] one t"), ("start", "[a] three")):
        form = PromptForm(template="chat", truncate=side, **lengths)
        encoder, lost = form.encoder(tokenizer, decoder_only=True), []
        texts, prefixes = ["[a] one two three", "[a] four!"], [form.prompt_prefix("a")] * 2
        prompts = [tokenizer.decode(ids) for ids in encoder.prompts(texts, prefixes, lost)]
        assert prompts == [before + kept + after for kept in (expected, "[a] four!")]
        assert lost == [8]
        (answer,) = encoder.answers(["answer"], lost)
        assert tokenizer.decode(answer) == "answ<extra_id_2>\n"
        assert lost == [8, 2]
    narrow = PromptForm(template="chat", max_input_length=around, max_output_length=6)
    with pytest.raises(ConfigError, match=r"max_input_length \(\d+\) must be larger than"):
        narrow.encoder(tokenizer, decoder_only=True).prompts(["a long question"])
    short = PromptForm(template="chat", max_output_length=2)
    with pytest.raises(ConfigError, match=r"max_output_length \(2\) must be larger than 2"):
        short.encoder(tokenizer, decoder_only=True)


def test_descriptions_are_system_text() -> None:
    form = PromptForm(
        template="chat", system="Be brief.", descriptions=True, task_descriptions={"a": " Do a. "}
    )
    assert form.prompt_prefix("a") == PromptPrefix("[a] ", "Be brief.\n\nDo a.")
    assert form.model_copy(update={"system": None}).prompt_prefix("a").system == "Do a."
    assert form.text("a", " x ") == "[a] x"
    with pytest.raises(TaskError, match="but 'b' has none"):
        form.prompt_prefix("b")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"the tokenizer '.*' has no chat template\. Name a tokenizer with another one"),
        ("{{messages[0].content | upper}}", "data.template is 'chat', but the chat template does"),
        ("{{messages[-1].content}}</s>", "data.template is 'chat', but the chat template does not"),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", "no special token after an answer"),
        ("{{ messages[0].nothing.at_all }}", "the chat template cannot be used: 'dict object' has"),
    ],
)
def test_templates_that_cannot_be_used(template: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptForm(template="chat").encoder(byte_tokenizer(template), decoder_only=True)


def test_an_encoder_decoder_has_no_chat() -> None:
    with pytest.raises(ConfigError, match=r"data.template 'chat' needs a decoder-only backbone,"):
        PromptForm(template="chat").encoder(byte_tokenizer(), decoder_only=False)
