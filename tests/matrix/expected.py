"""Which cells are refused, and why: what parts lack, and the rules of this file."""

import re
from functools import cache

from mttl.config.capabilities import missing_features
from mttl.config.load import configs_dir, load_config
from mttl.config.schema import Config

BACKBONES = ("t5", "llama")
FOLDERS = ("skills", "router", "experts", "aggregation", "optim", "adapt")
COLUMNS = ("train", "resume", "adapt", "predict", "serve", "merge-task", "export", "inventory")
COLUMNS += ("plot", "explore", "ablate", "add-tasks", "plan")
FIGURE = {"plots": "a figure of routing"}
# What a command asks of a run, in its words.
FEATURES = {
    "resume": {"trains": "training"},
    "merge-task": {"merges": "merge-task"},
    "export": {"exports_lora": "export"},
    "inventory": {"exports_inventory": "export"},
    "ablate": {**FIGURE, "ablates": "ablate"},
    "plot": FIGURE,
    "explore": FIGURE,
}
AFTER = "not trained"
OWN = "ladder|krona_block|adapter_stacked|mam|s4|lora_parallel|unipelt|prefix|adapter_parallel"
OWN += "|invertible|madx"
WHOLE = "dense|diff_pruning|dora|vera|intrinsic|sparse|far|masked_sparse|supermask|head_mask"
# Files and backbone, columns, and what the message says.
RULES = (
    (r"skills/(ia3|s4)\.yaml llama", "train plan", "matches no"),
    (r"router/token_(example|expert_choice)\.yaml llama", "train plan", "encoder"),
    (r"router/xlora\.yaml t5", "train plan", "an encoder-decoder has two"),
    (r"router/xlora\.yaml llama", "add-tasks", "define no task_rows"),
    (r"router/token_mola\.yaml llama", "train plan", "'*.block.0.*' matches no layer"),
    (r"router/metadata_grid\.yaml|adapt/coefficients\.yaml", "add-tasks", "its router is '"),
    (
        r"router/hyperformer\.yaml t5",
        "add-tasks",
        "adaptation changed the router's common parameters",
    ),
    (r"skills/bitfit.*\.yaml", "merge-task", "no bias"),
    (rf"skills/({OWN})\.yaml", "export", "Use the run itself"),
    (rf"skills/({WHOLE})\.yaml", "export", "Write a whole model instead"),
)


def files() -> list[str]:
    """Return the fragments that the matrix is about."""
    return [
        path.relative_to(configs_dir()).as_posix()
        for folder in FOLDERS
        for path in sorted((configs_dir() / folder).glob("*.yaml"))
    ]


@cache
def reasons(names: tuple[str, ...], backbone: str, column: str) -> list[str]:
    """Return the messages one of which says why a cell is refused; none where it works."""
    ruled = [
        (columns.split(), message)
        for cells, columns, message in RULES
        for name in names
        if re.match(cells, f"{name} {backbone}")
    ]
    untrained = any("train" in columns for columns, _ in ruled)
    if untrained and column not in ("train", "plan"):
        return [AFTER]
    return [message for columns, message in ruled if column in columns] + declared(names, column)


def declared(names: tuple[str, ...], column: str) -> list[str]:
    """Return why the parts of a configuration lack what a column needs."""
    if column not in FEATURES:
        return []
    return missing_features(config_of(names), FEATURES[column])


def config_of(names: tuple[str, ...]) -> Config:
    """Return the configuration of fragments, with what they need."""
    before = ["router/token_top2.yaml"] if names[0].startswith("experts/") else []
    changed = [change for name in names for change in MORE.get(name, [])]
    return load_config(["crossfit.yaml", *before, *names], changed, as_written=True)


MORE = {
    "router/metadata_grid.yaml": ["router.factors.a=[kind=0]"],
    "optim/maml.yaml": ["data.max_rows=2"],
}
