"""Export one level's policy as plain files: weights, sizes, and code that needs no mttl."""

import inspect
import json
from pathlib import Path

from envs.vocabulary import WORDS
from mttl.assembly.saved_settings import read_settings
from mttl.babyai import exported_policy, policy
from mttl.babyai.build_policy import PolicySettings, load_policies, network_arguments
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.config.capabilities import require_features
from mttl.io.files import new_folder, write_text
from mttl.io.safetensors_file import write_tensors


def export_policy(run: str | Path, level: str, out: str | Path) -> None:
    """Write the composed policy of a level to a new folder.

    ``policy.safetensors`` has the state of `mttl.babyai.policy.Policy`, and ``config.json`` its
    arguments and words. ``policy.py`` joins the network and `mttl.babyai.exported_policy`. Raises a
    `CheckpointError` if the policies have experts.
    """
    settings = read_settings(read_inventory(run), PolicySettings)
    require_features(settings, {"exports_policy": "export"})
    model, levels = load_policies(run)
    network = settings.policy
    n_tokens = len(model.base.get_parameter("words.weight"))
    config = {"level": level, "words": WORDS, "network": network_arguments(network, n_tokens)}
    code = [inspect.getsource(module) for module in (policy, exported_policy)]
    imported = f"from {policy.__name__} import Policy\n"
    with new_folder(out) as folder:
        own = model.task_module(levels.index(level))
        write_tensors(folder / "policy.safetensors", own.state_dict())
        write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
        write_text(folder / "policy.py", "\n\n".join(code).replace(imported, ""))
