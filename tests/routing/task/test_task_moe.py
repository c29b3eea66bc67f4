import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.skills import spread
from mttl.routing import TaskMoERouter


@given(n_skills=st.integers(2, 6), data=st.data())
def test_equals_a_loop_that_keeps_the_best_and_renormalises(n_skills, data):
    top_k = data.draw(st.integers(2, n_skills))
    router = spread(TaskMoERouter(2, 3, 2, n_skills, top_k=top_k)).eval()
    matrix = router.matrix()
    for group in range(2):
        for task in range(3):
            for head in range(2):
                probabilities = router.logits[group, task, head].softmax(0).tolist()
                best = sorted(range(n_skills), key=lambda k: -probabilities[k])[:top_k]
                total = sum(probabilities[k] for k in best)
                expected = [probabilities[k] / total if k in best else 0 for k in range(n_skills)]
                torch.testing.assert_close(
                    matrix[group, task, head], torch.tensor(expected).float()
                )


def test_noise_changes_the_choice_while_training_only_with_one_over_the_skills_as_deviation():
    router = spread(TaskMoERouter(1, 1, 1, 4, top_k=2))
    ids = torch.zeros(200, dtype=torch.long)
    assert len(router.train()(ids).unique(dim=1)[0]) > 1
    assert len(router.eval()(ids).unique(dim=1)[0]) == 1
    router = TaskMoERouter(1, 1, 1, 4, top_k=4).train()
    torch.nn.init.zeros_(router.logits)
    logits = router(torch.zeros(20_000, dtype=torch.long)).log()[0, :, 0]
    # The softmax removes the mean of the four draws: 3/4 of their variance is left.
    centred = logits - logits.mean(1, keepdim=True)
    assert centred.square().mean().item() == pytest.approx(3 / 4 / 16, rel=0.03)
