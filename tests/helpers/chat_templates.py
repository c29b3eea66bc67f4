"""Chat templates in the manners of published ones, for tokenizers whose end token is ``</s>``."""

from pathlib import Path

from transformers import ByT5Tokenizer

CHATML = (
    "{% for message in messages %}"
    "<extra_id_1>{{ message['role'] }}\n{{ message['content'] }}<extra_id_2>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<extra_id_1>assistant\n{% endif %}"
)
# The answer begins with a blank, and nothing asks for it; no system text.
INSTRUCTION = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('no system text') }}{% endif %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]"
    "{% else %} {{ message['content'] | trim }}</s>{% endif %}"
    "{% endfor %}"
)
# An empty thought before the answer, which the prompt leaves out.
THOUGHTFUL = CHATML.replace(
    "{{ message['content'] }}",
    "{% if message['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message['content'] }}",
)


def byte_tokenizer(template: str | None = CHATML) -> ByT5Tokenizer:
    return ByT5Tokenizer(chat_template=template)


def save_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """Write a byte tokenizer with a chat template; return its folder."""
    byte_tokenizer(template).save_pretrained(folder)
    return folder
