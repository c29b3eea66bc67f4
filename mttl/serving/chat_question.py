"""The question that the messages of a chat ask."""

from collections.abc import Sequence

from mttl.data.prompt_form import PromptForm
from mttl.serving.api_errors import Refusal
from mttl.serving.protocol import Message


def chat_question(messages: Sequence[Message], form: PromptForm, task: str) -> str:
    """Return the input of a task that messages hold.

    Args:
        messages: Of a chat, in order.
        form: How inputs of the task look; models have seen single questions only.
        task: Its name.

    Raises:
        Refusal: If there is not one message of a user, or a system message that is another
            than that of training.
    """
    system = form.opening(task).system
    if messages[0].role in ("system", "developer") and messages[0].text.strip() in ("", system):
        messages = messages[1:]  # empty, or stands there anyway
    roles = [message.role for message in messages]
    if roles != ["user"]:
        found = f"the messages are of {', '.join(roles)}" if roles else "no message is of the user"
        raise Refusal(
            400,
            f"{found}; the task was trained on single questions, so "
            "there must be one message, of the user. Put what it needs to know into that one",
            param="messages",
        )
    return messages[0].text
