"""The part of the page that shows which tokens choose which experts."""

from typing import Any

import numpy as np

from mttl.analysis.tokens.token_record import TokenRoutingRecord


def expert_tokens(record: TokenRoutingRecord, layer: int, expert: int, n: int) -> tuple[str, str]:
    """Return the commonest tokens of an expert, and of those before them, as text."""
    tokens = [
        f"{quoted(token)} {share:.0%} (after {quoted(before)})"
        for token, before, share, count in zip(
            record.tokens[layer, expert],
            record.before[layer, expert],
            record.token_shares[layer, expert],
            record.token_counts[layer, expert],
            strict=True,
        )
        if count
    ]
    counts = record.previous_counts[layer, expert]
    previous = [
        quoted(token)
        for token, count in zip(record.previous[layer, expert], counts, strict=True)
        if count
    ]
    return ", ".join(tokens[:n]), ", ".join(previous[:n])


def quoted(token: str) -> str:
    """Return a token so that blanks can be seen."""
    return repr(str(token)) if not str(token).strip() or not str(token).isprintable() else token


def token_data(record: TokenRoutingRecord) -> dict[str, Any]:
    """Return what the page tells about layers whose tokens choose experts."""
    loads, evenness = record.loads(), record.evenness()
    history = record.history
    layers = []
    for number, name in enumerate(record.layers):
        experts = []
        for expert, load in enumerate(loads[number]):
            tokens, previous = expert_tokens(record, number, expert, n=10)
            experts.append({"load": f"{load:.1%}", "tokens": tokens, "previous": previous})
        layers.append(
            {
                "name": name,
                "experts": experts,
                "numbers": (
                    f"Load entropy {evenness[number]:.3f} of 1; dropped "
                    f"{record.dropped[number]:.1%}. A choice has {record.expert_bits[number]:.2f} "
                    f"bits; the task tells {record.task_bits[number]:.2f}, the token before "
                    f"{record.previous_bits[number]:.2f}, the token "
                    f"{record.token_bits[number]:.2f}."
                ),
                "history": []
                if history is None
                else np.round(history.load[:, number].T.astype(float), 4).tolist(),
            }
        )
    return {
        "what": (
            f"{len(record.layers)} layers of {record.counts.shape[2]} experts. Percentages: which "
            "share of a token's choices in the layer this expert has."
        ),
        "steps": [] if history is None else history.steps.tolist(),
        "layers": layers,
    }
