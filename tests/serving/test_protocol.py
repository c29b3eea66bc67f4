"""What the protocols allow, and the errors of other requests."""

from typing import Any

import pytest

from mttl.data.prompt_form import PromptForm
from mttl.inference.mixture_name import shares_of
from mttl.io.errors import TaskError
from mttl.serving.protocol import (
    NEUTRAL,
    ApiError,
    ChatRequest,
    CompletionRequest,
    StreamOptions,
    parse_request,
)
from mttl.serving.served_task import conversation
from mttl.tasks.record_template import RecordTemplate

USER = {"role": "user", "content": "ab"}
ASKED = {"model": "copy", "prompt": "ab"}
CHAT = {"model": "copy", "messages": [USER]}


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        ("text", {"prompt": [[1, 2]]}, r"'prompt.0' \(\[1, 2\]\): Input should be a valid string"),
        ("text", {"prompt": []}, r"'prompt' \(\[\]\): Value should have at least 1 item"),
        ("text", {"model": None}, "'model' is missing"),
        ("text", {"top_p": 0}, r"'top_p' \(0\): Input should be greater than 0"),
        ("text", {"temperature": 2.1}, "less than or equal to 2"),
        ("text", {"n": True}, "valid integer"),
        ("text", {"stop": ["a", "b", "c", "d", "e"]}, "at most 4 items"),
        ("text", {"max_token": 3}, "'max_token' .* is not supported.* Did you mean 'max_tokens'"),
        ("text", {"best_of": 2}, r"'best_of' \(2\) is not supported; remove it$"),
        ("text", {"stream_options": {}}, "stream_options needs stream; set stream or remove it"),
        ("chat", {"messages": []}, "at least 1 item"),
        ("chat", {"messages": [{"role": "tool", "content": "a"}]}, "'messages.0.role'"),
        ("chat", {"tool_choice": "required"}, "'tool_choice' .* is not supported"),
        ("chat", {"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "less than or equal to 20"),
        ("chat", {"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens is another"),
    ],
)
def test_errors_are_reported(kind: str, values: dict[str, Any], told: str) -> None:
    expected, asked = (CompletionRequest, ASKED) if kind == "text" else (ChatRequest, CHAT)
    with pytest.raises(ApiError, match=told) as refused:
        parse_request(expected, {**asked, **values})
    assert refused.value.status == 400
    error = refused.value.body["error"]
    assert error["type"] == "invalid_request_error"


# Of every parameter of OpenAI's protocols that is not supported, the values that ask for nothing.
NOTHING: list[dict[str, Any]] = [
    {"user": "someone", "metadata": {"a": "b"}, "safety_identifier": "x", "prediction": {}},
    {"prompt_cache_key": "x", "prompt_cache_options": {}, "prompt_cache_retention": "24h"},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "best_of": 1, "n": 1},
    {"echo": False, "suffix": "", "store": False, "stop": []},
    {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "auto"},
    {"tool_choice": "none", "function_call": "none", "parallel_tool_calls": True},
    {"parallel_tool_calls": False, "service_tier": "auto", "verbosity": "medium"},
    {"service_tier": "default", "reasoning_effort": "none", "modalities": ["text"]},
    {"response_format": {"type": "text"}, "audio": None, "web_search_options": None},
]


@pytest.mark.parametrize("values", NOTHING)
def test_values_that_ask_for_nothing_are_taken(values: dict[str, Any]) -> None:
    request = parse_request(CompletionRequest, {**values, **ASKED})
    assert request == parse_request(CompletionRequest, ASKED)
    named = {**USER, "name": "x", "content": [{"type": "text", "text": "ab"}]}
    chat = parse_request(ChatRequest, {**CHAT, **values, "messages": [named], "top_logprobs": 0})
    assert chat.model_dump(exclude={"messages", "top_logprobs"}) == parse_request(
        ChatRequest, CHAT
    ).model_dump(exclude={"messages", "top_logprobs"})
    assert (chat.messages[0].text, chat.n_logprobs) == ("ab", None)


def test_all_that_is_not_supported_is_asked_for_in_vain() -> None:
    assert {name for values in NOTHING for name in values} >= NEUTRAL.keys()
    options = {"include_usage": True, "include_obfuscation": False}
    request = parse_request(CompletionRequest, {**ASKED, "stream": True, "stream_options": options})
    assert request.stream_options == StreamOptions(include_usage=True)
    assert request.prompt == ["ab"]
    both = {"max_tokens": 3, "max_completion_tokens": 3}
    assert parse_request(ChatRequest, {**CHAT, **both}).max_tokens == 3
    chat = parse_request(ChatRequest, {**CHAT, "stop": "x", "logprobs": True, "temperature": 1})
    assert (chat.stop, chat.n_logprobs, chat.temperature) == (["x"], 0, 1)
    assert parse_request(ChatRequest, CHAT).n_logprobs is None


SYSTEM = {"role": "system", "content": " be short "}
REPLY = {"role": "assistant", "content": " c "}
CHATS = PromptForm(template="chat", system="be kind")
KIND, SHORT = "be kind", "be short"


@pytest.mark.parametrize(
    ("form", "messages", "expected"),
    [
        (PromptForm(), [USER], ("ab", None, ())),
        (PromptForm(), [{"role": "system", "content": " "}, USER], ("ab", None, ())),
        (PromptForm(), [SYSTEM, USER], r"the roles are system, user; .* one message"),
        (PromptForm(), [USER, REPLY, USER], r"the roles are user, assistant, user; .* one message"),
        (CHATS, [USER], ("ab", KIND, ())),
        (CHATS, [SYSTEM, USER], ("ab", SHORT, ())),
        (CHATS, [{"role": "developer", "content": KIND}, USER], ("ab", KIND, ())),
        (CHATS, [USER, REPLY, USER], ("ab", KIND, (("ab", "c"),))),
        (CHATS, [SYSTEM, *[USER, REPLY] * 2, USER], ("ab", SHORT, (("ab", "c"),) * 2)),
        (CHATS, [SYSTEM], "there is no user message; user and assistant must alternate"),
        (CHATS, [REPLY], "the roles are assistant; user and assistant must"),
        (CHATS, [USER, REPLY], "the roles are user, assistant; "),
        (CHATS, [USER, USER], "the roles are user, user; "),
        (CHATS, [USER, SYSTEM, USER], "the roles are user, system, user; "),
    ],
)
def test_conversations_follow_the_form(form: PromptForm, messages: Any, expected: Any) -> None:
    asked = parse_request(ChatRequest, {**CHAT, "messages": messages})
    if isinstance(expected, str):
        with pytest.raises(ApiError, match=expected):
            conversation(asked.messages, form, "task")
        return
    question, (prefix, *found, _) = conversation(asked.messages, form, "task")
    assert (question, prefix, *found) == (expected[0], "[task] ", *expected[1:])


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    asked = parse_request(ChatRequest, {**CHAT, "messages": messages})
    assert conversation(asked.messages, PromptForm(), "task")[0] == "a\nb"


def test_mixtures_are_names_or_objects() -> None:
    shares = {"a": 0.7, "b": 3}
    request = parse_request(CompletionRequest, {**ASKED, "model": shares})
    assert request.model == "mix:a=0.7,b=3"
    assert shares_of(request.model) == shares_of("mix: a=0.7 , b=3e0") == shares
    for wrong in ("mix:", "mix:a", "mix:a=0.5,a=0.5", "mix:a=x"):
        with pytest.raises(TaskError, match="must have the form mix:"):
            shares_of(wrong)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], "user: ab"),
        ([{"role": "user", "content": "knowledge: K\nuser: ab"}], "knowledge: K\nuser: ab"),
        ([SYSTEM, USER], "knowledge: be short\nuser: ab"),
        ([USER, REPLY, USER], "user: ab\nassistant: c\nuser: ab"),
        ([{"role": "user", "content": " "}], " "),  # rejected later as empty
    ],
)
def test_a_dialogue_is_the_text_of_its_template(messages: Any, expected: str) -> None:
    template = RecordTemplate(input="{history|turns}", dialogue=True)
    form = PromptForm(task_templates={"task": template})
    asked = parse_request(ChatRequest, {**CHAT, "messages": messages})
    assert conversation(asked.messages, form, "task") == (expected, form.prompt_prefix("task"))
