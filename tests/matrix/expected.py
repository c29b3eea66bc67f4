"""Which cells are refused, and why: what parts lack, and the rules of this file."""

import re
from functools import cache

from mttl.config.capabilities import missing_features
from mttl.config.load import load_config

FIGURE = {"plots": "a figure of routing"}
# What a command asks of a run, in its words.
FEATURES = {
    "merge-task": {"merges": "merge-task"},
    "export": {"exports_lora": "export"},
    "inventory": {"exports_inventory": "export"},
    "ablate": {**FIGURE, "ablates": "ablate"},
    "plot": FIGURE,
    "explore": FIGURE,
}
AFTER = "not trained"
# Files and backbone, columns, and what the message says.
RULES = (
    (r"skills/(ia3|s4)\.yaml llama", "train plan", "matches no"),
    (r"router/token_(example|expert_choice)\.yaml llama", "train plan", "encoder"),
    (r"router/(arrow|spectral|phatgoose|retrieval)\.yaml", "resume", "made, not trained"),
    (
        r"router/metadata_grid\.yaml|adapt/coefficients\.yaml",
        "add-tasks",
        "its router is of the kind",
    ),
    (r"router/hyperformer\.yaml t5", "add-tasks", "what the router has in common for all tasks"),
    (r"skills/bitfit.*\.yaml", "merge-task", "no bias"),
    (
        r"skills/(ladder|krona_block|adapter_stacked|mam|s4|lora_parallel|unipelt|prefix|"
        r"adapter_parallel)\.yaml",
        "export",
        "Only mttl answers with them",
    ),
    (
        r"skills/(dense|diff_pruning|intrinsic|sparse|supermask|head_mask)\.yaml",
        "export",
        "A whole model can be written instead",
    ),
)


@cache
def reason(file: str, backbone: str, column: str) -> str | None:
    """Return what the message says with which a cell is refused; None where it works."""
    for cells, columns, message in RULES:
        if re.match(cells, f"{file} {backbone}"):
            if column in columns.split():
                return message
            if "train" in columns:
                return AFTER
    return declared(file, column)


def declared(file: str, column: str) -> str | None:
    """Return why a part of a file's configuration lacks what a column needs."""
    if column not in FEATURES:
        return None
    before = "router/token_top2.yaml+" if file.startswith("experts/") else ""
    config = load_config(f"crossfit.yaml+{before}{file}", MORE.get(file, []), as_written=True)
    found = missing_features(config, FEATURES[column])
    return found[0] if found else None


MORE = {
    "router/metadata_grid.yaml": ["router.factors.a=[kind=0]"],
    "optim/maml.yaml": ["data.max_rows=2"],
}
