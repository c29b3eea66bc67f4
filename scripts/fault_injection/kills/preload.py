"""What most commands import: loaded once, in the process that those of the test are copies of."""

import datasets  # noqa: F401
import numpy as np
import optuna.storages.journal  # noqa: F401

import mttl.adaptation.new_tasks
import mttl.babyai.new_levels
import mttl.babyai.train
import mttl.merging.run
import mttl.peft_format.poly
import mttl.sparse.lottery_ticket
import mttl.training.report  # noqa: F401
from envs.vector import make_vector_env

# What is compiled at its first use.
_env = make_vector_env(["GoToObjS4"], 1, seed=0)
_env.reset()
_env.step(np.zeros((1, 1), np.int64))
_env.close()
