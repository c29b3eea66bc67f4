"""Which cells are refused, and why: what parts lack, and the rules of this file."""

import re
from functools import cache

from mttl.config.capabilities import missing_features
from mttl.config.load import configs_dir, load_config

BACKBONES = ("t5", "llama")
FOLDERS = ("skills", "router", "experts", "aggregation", "optim", "adapt")
COLUMNS = ("train", "resume", "adapt", "predict", "serve", "merge-task", "export", "inventory")
COLUMNS += ("plot", "explore", "ablate", "add-tasks", "plan")
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


def files() -> list[str]:
    """Return the fragments that the matrix is about."""
    return [
        path.relative_to(configs_dir()).as_posix()
        for folder in FOLDERS
        for path in sorted((configs_dir() / folder).glob("*.yaml"))
    ]


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
