"""A training of policies that takes seconds."""

from typing import Any

LEVELS = ["GoToObjS4", "GoToRedBallNoDists"]
TINY: dict[str, Any] = {
    "rl": {
        "levels": LEVELS,
        "n_slots": 3,
        "policy": {"n_channels": 8, "memory_size": 8, "instruction_size": 8},
        "ppo": {"n_steps": 8, "recurrence": 4, "n_epochs": 2, "n_minibatches": 2},
        "window": 5,
        "evaluation": {"n_episodes": 2},
    },
    "skills": {"kind": "sparse", "n_skills": 3, "sparsity": 0.5},
    "router": {"kind": "polytropon", "granularity": "model", "relaxed": False},
    "optim": {
        **{"kind": "adam", "lr": 1e-3, "router_lr": 1e-2},
        **{"schedule": "constant", "warmup": 0, "weight_decay": 0.0},
    },
    "trainer": {"max_epochs": 4, "gradient_clip_val": 0.5, "accelerator": "cpu", "devices": 1},
}
