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
