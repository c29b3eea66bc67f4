"""The names of the commands, without importing any."""

# Modules of this package by command. `mttl --help` lists these, and the others under "more".
COMMANDS = {
    "train": "train",
    "adapt": "adapt",
    "predict": "predict",
    "serve": "serve",
    "explore": "explore",
    "compare": "compare",
    "export": "export",
    "plan": "plan",
    "build": "build",
}
MORE = {
    "search": "search",
    "add-tasks": "add_tasks",
    "sparse": "sparse",
    "plot": "plot",
    "ablate": "ablate",
    "merge": "merge",
    "merge-task": "merge_task",
    "fisher": "fisher",
    "compose": "compose",
    "import": "import_peft",
    "library": "library",
    "convert": "convert",
    "babyai record": "babyai_record",
    "babyai film": "babyai_film",
}
