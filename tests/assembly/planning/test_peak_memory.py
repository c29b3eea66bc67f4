import torch

from mttl.assembly.planning.peak_memory import PeakMemory


def test_the_peak_is_what_lives_at_once():
    weight = torch.zeros(10, 10)
    with PeakMemory([weight]) as counter:
        first = weight + 1  # 400 bytes
        view = first.t()  # none of its own
        del first
        second = view * 2
        with counter.counting("kept"):
            third = second[:5] + 0  # 200 bytes
        assert counter.live == {"activations": 800, "kept": 200}
        del view, second
        assert counter.live["activations"] == 0
        counter.call(third, "renamed")
        weight.t()  # was there before
    assert counter.peak == 1000
    assert counter.at_peak == {"activations": 800, "kept": 200}
    assert counter.live == {"activations": 0, "kept": 0, "renamed": 200}
