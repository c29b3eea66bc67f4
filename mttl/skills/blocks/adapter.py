"""Bottleneck adapters: small feed-forward blocks beside or behind a layer."""

from jaxtyping import Float
from torch import Tensor, nn

from mttl.routing.token.choice import Assignment
from mttl.skills.blocks.feed_forward_experts import Activation, FeedForwardExperts
from mttl.skills.inventory import Inventory


class AdapterInventory(Inventory):
    r"""Bottleneck adapters: what is added is :math:`\sum_e g_e (U_e\,a(D_e h + b_e) + c_e)`.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of its output.
        n_skills: Skills K.
        hidden_features: Width of the bottleneck.
        activation: As in `FeedForwardExperts`.
        parallel: h is the layer's input; otherwise its output.

    Raises:
        ValueError: If a size is not positive.

    References:
        Houlsby et al., *Parameter-Efficient Transfer Learning for NLP*, ICML 2019,
        arXiv:1902.00751. In parallel: He et al., ICLR 2022, arXiv:2110.04366. As experts: Wang et
        al., *AdaMix*, EMNLP 2022, arXiv:2205.12410.
    """

    uses = ("token",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        hidden_features: int = 64,
        activation: str | Activation = "relu",
        parallel: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.reads = "input" if parallel else "output"
        self.blocks = FeedForwardExperts(
            in_features if parallel else out_features,
            hidden_features,
            out_features,
            n_skills,
            activation=activation,
            bias=True,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the way down as `nn.Linear` does and set the way up to 0: no change yet."""
        self.blocks.reset_parameters()
        nn.init.zeros_(self.blocks.down)

    def dispatch(
        self, x: Float[Tensor, "N features"], assignment: Assignment
    ) -> Float[Tensor, "N O"]:
        """Return what is added to the layer's output."""
        return self.blocks.dispatch(x, assignment)
