"""Compare the speed of mixture-of-experts layers: forward and backward of one gated layer, top-2.

    python scripts/benchmarks/moe_speed.py [--features 512] [--experts 8 64] [--tokens 64 2048]

The floor is one dense SwiGLU block of PyTorch's linear layers with twice the hidden units of an
expert: as many operations per token as two experts. *One expert* is the same block computed by our
products; *without oneDNN* ours are those of the floor. Every step has new tokens, so that the
experts' loads differ from step to step. ``st-moe-pytorch`` is left out where it is not installed;
its room for tokens is set so that next to none are dropped. Its gate has a GELU, all others a SiLU.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from _common import Step, parse_arguments, positive, report, run

if TYPE_CHECKING:  # the parent process never loads these
    from torch import Tensor, nn

FLOOR, OURS, ST_MOE = "dense", "ours", "st-moe-pytorch"
WITHOUT_ONEDNN = "ours without oneDNN"
MIXTRAL = {"Mixtral eager": "eager", "Mixtral grouped": "grouped_mm"}
VARIANTS = (FLOOR, "one expert", OURS, WITHOUT_ONEDNN, *MIXTRAL, ST_MOE, "naive loop")
TOP_K = 2
N_INPUTS = 8
ST_MOE_CAPACITY = 2.5  # of tokens / experts, for two experts each


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Speed of mixture-of-experts layers.")
    add = parser.add_argument
    add("--features", type=positive, nargs="+", default=[512], help="(%(default)s)")
    add("--hidden", type=positive, help="units of an expert (4 x features)")
    add("--experts", type=positive, nargs="+", default=[8, 64], help="(%(default)s)")
    add("--tokens", type=positive, nargs="+", default=[64, 2048])
    add("--threads", type=positive, default=1, help="beyond 1, wall time is taken")
    settings = parse_arguments(parser, VARIANTS, argv, sizes=(), devices=True)
    if min(settings.experts) < TOP_K:
        parser.error(f"--experts ({min(settings.experts)}) must be at least {TOP_K}")
    if ST_MOE in settings.only and find_spec("st_moe_pytorch") is None:
        print(f"{ST_MOE} is left out: it is not installed (pip install {ST_MOE})", file=sys.stderr)
        settings.only.remove(ST_MOE)
    clock = None if settings.threads == 1 else time.perf_counter
    rows: list[dict[str, Any]] = []
    for n_features in settings.features:
        for n_experts in settings.experts:
            for n_tokens in settings.tokens:
                hidden = settings.hidden or 4 * n_features
                case = {"d": n_features, "h": hidden, "e": n_experts, "n": n_tokens}
                found = run(build, argparse.Namespace(**vars(settings), **case), clock)
                name = f"{n_features}/{hidden}/{n_experts}/{n_tokens}"
                rows += [{**row, "name": f"{name} {row['name']}"} for row in found]
    title = f"gated experts, top-{TOP_K}, {settings.dtype}: features/hidden/experts/tokens"
    report(rows, settings, title=title, unit="ms", columns={"peak_mib": "peak memory, MiB"})
    return 0


def build(variant: str, settings: argparse.Namespace) -> tuple[Step, dict[str, float]]:
    """Make the step of a variant: forward and backward, with gradients of tokens and weights."""
    import torch

    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    torch.backends.mkldnn.enabled = variant != WITHOUT_ONEDNN
    layer = make_layer(variant, settings.d, settings.h, settings.e)
    layer = layer.to(settings.device, getattr(torch, settings.dtype))
    shape = (N_INPUTS, 1, settings.n, settings.d)
    inputs = torch.randn(shape, device=settings.device).to(getattr(torch, settings.dtype))
    gradient = torch.randn_like(inputs[0])
    parameters, taken = list(layer.parameters()), iter(range(sys.maxsize))

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        x = inputs[next(taken) % N_INPUTS].clone().requires_grad_()
        forward(variant, layer, x).backward(gradient)

    return step, {}


def forward(variant: str, layer: "nn.Module", x: "Tensor") -> "Tensor":
    """Return a layer's output."""
    if variant not in (OURS, WITHOUT_ONEDNN):
        y = layer(x)
        return y.outputs if variant == ST_MOE else y
    import torch

    from mttl.routing import Routing

    routing = Routing(torch.zeros(1, dtype=torch.long), x.new_ones(1, 1, 1, 1))
    with layer.slot.use(routing):  # type: ignore[operator, union-attr]
        return layer(x)


def make_layer(variant: str, d: int, hidden: int, n_experts: int) -> "nn.Module":
    """Return the layer of a variant, with random weights."""
    if variant == FLOOR:
        return _dense(d, TOP_K * hidden)
    if variant == "one expert":
        return _one_expert(d, TOP_K * hidden)
    if variant in (OURS, WITHOUT_ONEDNN):
        from mttl.moe import FeedForwardExperts, MoELayer
        from mttl.routing import RoutingSlot, TopKRouter

        experts = FeedForwardExperts(d, hidden, d, n_experts, activation="silu", gated=True)
        return MoELayer(experts, TopKRouter(d, n_experts, top_k=TOP_K), RoutingSlot())
    if variant == ST_MOE:
        from st_moe_pytorch import MoE  # type: ignore[import-not-found]

        # Its hidden units are two thirds of features times the multiple.
        return MoE(
            dim=d,
            num_experts=n_experts,
            gating_top_n=TOP_K,
            expert_hidden_mult=1.5 * hidden / d,  # type: ignore[arg-type]
            capacity_factor_train=ST_MOE_CAPACITY,
            threshold_train=0.0,
        )
    if variant in MIXTRAL:
        return _mixtral(MIXTRAL[variant], d, hidden, n_experts)
    return _naive(d, hidden, n_experts)


def _dense(d: int, hidden: int) -> "nn.Module":
    import torch
    from torch import nn

    class SwiGLU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(d, 2 * hidden, bias=False)
            self.down = nn.Linear(hidden, d, bias=False)

        def forward(self, x: "Tensor") -> "Tensor":
            gate, value = self.up(x).chunk(2, dim=-1)
            return self.down(torch.nn.functional.silu(gate) * value)

    return SwiGLU()


def _one_expert(d: int, hidden: int) -> "nn.Module":
    import torch
    from torch import nn

    from mttl.moe import FeedForwardExperts
    from mttl.routing import Assignment

    class OneExpert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = FeedForwardExperts(d, hidden, d, 1, activation="silu", gated=True)

        def forward(self, x: "Tensor") -> "Tensor":
            tokens = torch.arange(x.shape[1], device=x.device)
            ones = torch.ones(len(tokens), 1, device=x.device)
            everything = Assignment(tokens, torch.zeros_like(tokens), ones[:, 0], ones)
            return self.experts.dispatch(x[0], everything)[None]

    return OneExpert()


def _mixtral(implementation: str, d: int, hidden: int, n_experts: int) -> "nn.Module":
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=d,
        intermediate_size=hidden,
        num_local_experts=n_experts,
        num_experts_per_tok=TOP_K,
    )
    config._experts_implementation = implementation
    block = MixtralSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return block


def _naive(d: int, hidden: int, n_experts: int) -> "nn.Module":
    import torch
    from torch import nn

    class Loop(nn.Module):
        """What one writes first: for every expert, find its tokens and index its weights."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(d, n_experts, bias=False)
            self.up = nn.Parameter(0.02 * torch.randn(n_experts, 2 * hidden, d))
            self.down = nn.Parameter(0.02 * torch.randn(n_experts, d, hidden))

        def forward(self, x: "Tensor") -> "Tensor":
            x = x[0]
            gates, chosen = torch.softmax(self.router(x), -1).topk(TOP_K)
            gates = gates / gates.sum(-1, keepdim=True)
            y = torch.zeros_like(x)
            for e in range(n_experts):
                tokens, places = torch.where(chosen == e)
                gate, value = (x[tokens] @ self.up[e].t()).chunk(2, dim=-1)
                out = (torch.nn.functional.silu(gate) * value) @ self.down[e].t()
                y = y.index_add(0, tokens, out * gates[tokens, places, None])
            return y[None]

    return Loop()


if __name__ == "__main__":
    sys.exit(main())
