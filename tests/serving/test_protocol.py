"""What the protocols allow, and the errors of other requests."""

from typing import Any

import pytest

from mttl.data.prompt_form import PromptForm
from mttl.serving.protocol import (
    NEUTRAL,
    ApiError,
    ChatRequest,
    CompletionRequest,
    StreamOptions,
    parse_request,
)
from mttl.serving.served_task import chat_question

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
        (
            "chat",
            {"max_tokens": 1, "max_completion_tokens": 2},
            "max_completion_tokens is another name of max_tokens; use only one",
        ),
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


def test_a_chat_is_a_single_question() -> None:
    def question(*messages: dict[str, Any], form: PromptForm | None = None) -> str:
        request = parse_request(ChatRequest, {**CHAT, "messages": list(messages)})
        return chat_question(request.messages, form or PromptForm(), "task")

    assert question(USER) == "ab"
    parts = [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b"}]
    assert question({"role": "user", "content": parts}) == "a\nb"
    assert question({"role": "system", "content": " "}, USER) == "ab"
    system = {"role": "system", "content": "be short"}
    with pytest.raises(ApiError, match=r"the roles are system, user; .* one message"):
        question(system, USER)
    assert question(system, USER, form=PromptForm(template="chat", system="be short")) == "ab"
    with pytest.raises(ApiError, match=r"the roles are system, user; .* one message"):
        question(system, USER, form=PromptForm(template="chat", system="be kind"))
    with pytest.raises(ApiError, match="user, assistant, user"):
        question(USER, {"role": "assistant", "content": "b"}, USER)
    with pytest.raises(ApiError, match=r"there is no user message; .* one message"):
        question(system, form=PromptForm(template="chat", system="be short"))
    with pytest.raises(ApiError, match="the roles are assistant; "):
        question({"role": "assistant", "content": "b"})
