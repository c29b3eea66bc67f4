"""The policy of one level, exported by `mttl export`; this file needs only torch and safetensors.

    sys.path.insert(0, "FOLDER")
    from policy import Player

    player = Player("FOLDER")
    logits = player(observation, begins=True)  # then False until the episode ends

An observation is that of minigrid, with ``image`` and ``mission``. The logits (7,) are those of
minigrid's actions; the most probable one is ``int(logits.argmax())``.
"""

import json
from pathlib import Path
from zlib import crc32

import torch
from safetensors.torch import load_file

from mttl.babyai.policy import Policy


class Player:
    """A policy with its memory, which plays one environment."""

    def __init__(self, folder):
        config = json.loads((Path(folder) / "config.json").read_text())
        self.words, self.n_tokens = config["words"], config["network"]["n_tokens"]
        self.policy = Policy(**config["network"]).eval()
        self.policy.load_state_dict(load_file(Path(folder) / "policy.safetensors"))
        self.memory = torch.zeros(1, 2 * self.policy.memory_size)

    def tokens(self, mission):
        n, words = len(self.words) + 1, mission.replace(", then", " then").split()
        other = [n + crc32(word.encode()) % max(1, self.n_tokens - n) for word in words]
        known = {word: token for token, word in enumerate(self.words, 1)}
        return [known.get(*pair) for pair in zip(words, other, strict=True)] or [0]

    @torch.no_grad()
    def __call__(self, observation, *, begins):
        image = torch.as_tensor(observation["image"])[None, None]
        mission = torch.tensor([self.tokens(observation["mission"])])
        index = torch.zeros(1, 1, dtype=torch.long)
        given = image, mission, index, self.memory, torch.tensor([[begins]])
        logits, _, self.memory = self.policy(*given)
        return logits[0, 0]
