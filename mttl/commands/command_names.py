"""Names of the commands, without importing them."""

# Modules of this package by command. `mttl --help` lists these, and the others under "more".
FIRST = ("init", "train", "adapt", "predict", "serve", "explore", "compare", "export", "plan")
COMMANDS = {name: name for name in FIRST}
MORE = {
    **{"list": "list_runs", "show": "show"},
    **{name: name for name in ("build", "search", "eval", "score", "sparse", "plot", "ablate")},
    **{
        name: name
        for name in ("merge", "sweep", "fisher", "compose", "library", "convert", "quark")
    },
    **{"add-tasks": "add_tasks", "merge-task": "merge_task", "import": "import_peft"},
    "extract-lora": "extract_lora",
    **{"babyai record": "babyai_record", "babyai film": "babyai_film"},
}
