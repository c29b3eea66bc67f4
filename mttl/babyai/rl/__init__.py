"""REINFORCEMENT LEARNING: pure functions on what a policy saw, did and got.

They know neither environments nor Lightning. One update of a policy reads:

    rollout = stack_steps(steps, recurrence)
    advantages = generalised_advantages(rollout.rewards, rollout.values, rollout.ends, …)
    sequences = cut_sequences(rollout, advantages, advantages + rollout.values)
    for batch in minibatches(sequences, n_minibatches=2, n_epochs=4, generator=generator):
        logits, values, _ = policy(*batch.inputs)
        loss, statistics = ppo_loss(logits, values, batch.actions, …)

Letters beyond those of `mttl.shapes`: `S` steps, `N` slots (environments of a task) or sequences,
`M` tokens of a mission (`L` of the longest), `E` distinct missions, `D` numbers of a memory, `C`
memories kept, `A` actions.
"""

from mttl.babyai.rl.episode_log import EpisodeLog
from mttl.babyai.rl.gae import generalised_advantages, normalise_advantages
from mttl.babyai.rl.imitation import imitation_loss
from mttl.babyai.rl.learning_curve import episodes_to, reached, smooth
from mttl.babyai.rl.missions import distinct_missions, without_padding
from mttl.babyai.rl.ppo import action_log_probs, ppo_loss
from mttl.babyai.rl.rollout import Rollout, Step, stack_steps
from mttl.babyai.rl.sequences import EpisodeSequences, cut_sequences, minibatches

__all__ = [
    "EpisodeLog",
    "EpisodeSequences",
    "Rollout",
    "Step",
    "action_log_probs",
    "cut_sequences",
    "distinct_missions",
    "episodes_to",
    "generalised_advantages",
    "imitation_loss",
    "minibatches",
    "normalise_advantages",
    "ppo_loss",
    "reached",
    "smooth",
    "stack_steps",
    "without_padding",
]
