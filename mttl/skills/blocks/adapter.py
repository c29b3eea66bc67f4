"""Bottleneck adapters: small feed-forward networks beside or behind a block."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mttl.skills.blocks.bottleneck import BottleneckInventory, Projections, averaged
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts


class AdapterInventory(BottleneckInventory):
    r"""K bottleneck adapters: two projections with biases, and an activation between them.

    ==================  ==================================================================
    Houlsby             behind attention and feed-forward blocks
    Pfeiffer            behind feed-forward blocks only
    parallel            beside a block, reading its input
    scaled parallel     the same with the factor 4, beside feed-forward blocks
    ==================  ==================================================================

    Places are those of the survey of He et al.: skills read the block's output, or its input. In
    the library `adapters`, and the release of AdapterFusion, a Pfeiffer adapter reads the sum of
    output and residual, behind the norm if the model normalises there, and a parallel adapter the
    residual. From the same input both make the same change.

    References:
        Houlsby et al., *Parameter-Efficient Transfer Learning for NLP*, ICML 2019,
        arXiv:1902.00751. Pfeiffer et al., *AdapterFusion*, EACL 2021, arXiv:2005.00247. In
        parallel and scaled: He et al., *Towards a Unified View of Parameter-Efficient Transfer
        Learning*, ICLR 2022, arXiv:2110.04366. Averaged parameters: Chronopoulou et al.,
        *AdapterSoup*, arXiv:2302.07027. As experts: Wang et al., *AdaMix*, EMNLP 2022,
        arXiv:2205.12410.
    """

    def __init__(self, in_features: int, out_features: int, n_skills: int, **settings: Any) -> None:
        super().__init__(in_features, out_features, n_skills, **settings)
        sizes = self.read_features, self.hidden_features, out_features, n_skills
        self.blocks = FeedForwardExperts(*sizes, activation=self.activation, bias=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the way down as `nn.Linear` does and set the way up to 0: no change yet."""
        self.blocks.reset_parameters()
        nn.init.zeros_(self.blocks.down)

    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        """Return the way down and the way up, each with its bias."""
        parts: Any = (
            *(self.blocks.up, self.blocks.up_bias),
            *(self.blocks.down, self.blocks.down_bias),
        )
        return averaged(parts, weights)


class AdapterExperts(AdapterInventory):
    """Bottleneck adapters beside feed-forward blocks."""

    internal = ("activation", "parallel", "scale", "layer_norm", "mix", "stages")
