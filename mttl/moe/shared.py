"""An expert that is always on."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.routing.token.choice import Assignment
from mttl.skills.inventory import Inventory


class SharedExpert(nn.Module):
    """Processes every token with weight 1, beside the experts that tokens choose.

    What all tokens need is learned once, and leaves the others free to differ.

    Raises:
        ValueError: If there are more, or they act on the output of another module.

    References:
        Dai et al., *DeepSeekMoE*, 2024, arXiv:2401.06066, section 3.2.
    """

    def __init__(self, experts: Inventory) -> None:
        super().__init__()
        if experts.n_skills != 1:
            raise ValueError(f"a shared expert is one, not {experts.n_skills}")
        if experts.reads == "output":
            raise ValueError(
                f"{type(experts).__name__} rescale an output and cannot be shared beside others; "
                "use another kind of expert, or no shared one"
            )
        self.experts = experts

    def forward(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        """Return the expert's output for every token."""
        tokens = torch.arange(len(x), device=x.device)
        ones = torch.ones(len(x), device=x.device)
        assignment = Assignment(tokens, torch.zeros_like(tokens), ones, ones[:, None])
        return self.experts.dispatch(x, assignment)
