"""Which experts took the tokens of one question and of its answer, layer by layer."""

from typing import Any

import torch

from mttl.analysis.token_record import quoted
from mttl.data.collate import pad, pad_id_of, padded_inputs
from mttl.data.encode import TextEncoder
from mttl.inference.predictor import Predictor
from mttl.models.teacher_forcing import forced_inputs


@torch.no_grad()
def token_experts(
    predictor: Predictor, encoder: TextEncoder, task: str, text: str, answer: str
) -> dict[str, Any]:
    """Return the tokens of a question and of its answer, and the experts that took each.

    The model reads the answer once more, as it reads right answers in training, without its end.

    Returns:
        ``prompt`` and ``answer``, texts of tokens; and ``layers``, each with its ``name``, its
        number of ``experts``, and what tokens ``chose``: a list of experts, the preferred one first
        where the router has one, for every token of the prompt and then of the answer.
    """
    form, model = predictor.form, predictor.model
    (prompt,) = encoder.prompts([form.text(task, text)], [form.prompt_prefix(task)])
    read = encoder.answers([answer])[0][:-1]
    tokenizer: Any = predictor.tokenizer
    if predictor.decoder_only:
        inputs = padded_inputs([[*prompt, *read]], pad_id_of(tokenizer))
    else:
        batch = padded_inputs([prompt], pad_id_of(tokenizer))
        labels = pad([[*read, tokenizer.eos_token_id]], pad_id_of(tokenizer))
        inputs = forced_inputs(model.backbone, {**batch, "labels": labels})
    inputs = {name: ids.to(predictor.device) for name, ids in inputs.items()}
    task_ids = predictor.task_ids([task]).to(predictor.device)
    with (
        predictor.precision.forward_context(),
        model.slot.use(model.route(task_ids, inputs=inputs)) as routing,
    ):
        model.backbone(**inputs, use_cache=False)
    layers = []
    for record in routing.records:
        # A decoder of its own reads a start token, and then the answer.
        apart = record.stack == "decoder" and "decoder_input_ids" in inputs
        first = len(prompt) - 1 if apart else 0
        chose: list[list[int]] = [[] for _ in (*prompt, *read)]
        kept = slice(None) if record.kept is None else record.kept
        pairs = zip(record.tokens[kept].tolist(), record.experts[kept].tolist(), strict=True)
        for token, expert in pairs:
            if token or not apart:
                chose[first + token].append(expert)
        layers.append({"name": record.layer, "experts": record.n_experts, "chose": chose})
    names = [[quoted(x) for x in tokenizer.convert_ids_to_tokens(ids)] for ids in (prompt, read)]
    return {"prompt": names[0], "answer": names[1], "layers": layers}
