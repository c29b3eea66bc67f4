"""Methods and ways to adapt that only the studies compare, besides those of `mttl compare`."""

from dataclasses import replace

from mttl.comparison.methods import METHODS, Method, Way

MEAN_ROW = Way("mean_row", ("adapt.mode=all", "adapt.init=mean"))
# Full fine-tuning of the backbone, without the inventory.
BARE_FULL = Way("bare_full", ("adapt.mode=full", "adapt.init=own", "adapt.lr=1e-3"))
FRESH_ROW = Way("fresh_row", ("adapt.mode=all", "adapt.init=fresh"))
FROM_BEST_ROW = Way("from_best_row", ("adapt.mode=all", "adapt.init=best_row"))
# Adapted twice, from the best row and from the mean; the better one on development rows is kept.
TWO_STARTS = Way("two_starts", ("adapt.mode=all", "adapt.init=two_starts"))
GIVEN_ROW = Way("given_row", ("adapt.mode=zero_shot", "adapt.init=matrix"))
# Polytropon's routing weights, learned over skills that another router has trained.
LEARNED_ROW = Way("learned_row", ("adapt.mode=router_only", "adapt.init=learned"))
# Unconstrained coefficients, from 1 / K or from the nearest task.
FREE_WAYS = tuple(
    Way(init, ("adapt.mode=router_only", f"adapt.init={init}", "adapt.router_lr=2e-2"))
    for init in ("coefficients", "best_coefficients")
)
PRIVATE_WAYS = (FROM_BEST_ROW, LEARNED_ROW, *FREE_WAYS, MEAN_ROW)
FURTHER_WAYS = {
    "polytropon": (MEAN_ROW, TWO_STARTS, *FREE_WAYS, FRESH_ROW, BARE_FULL),
    "private": PRIVATE_WAYS,
    "expert": (GIVEN_ROW, *PRIVATE_WAYS),
    "hyperformer": (MEAN_ROW, TWO_STARTS),
    "task_moe": (MEAN_ROW, TWO_STARTS),
    "multi_head_2": FREE_WAYS,
    "multi_head_4": FREE_WAYS,
    "multi_head_8": FREE_WAYS,
}
UNBALANCED = ("moe.balance.switch=0", "moe.balance.z=0")


def _polytropon(*settings: str) -> Method:
    return Method("router/polytropon.yaml", settings)


ABLATIONS = {
    "n_skills_2": _polytropon("skills.n_skills=2"),
    "n_skills_4": _polytropon("skills.n_skills=4"),
    "n_skills_16": _polytropon("skills.n_skills=16"),
    "multi_head_8_of_32": replace(
        METHODS["multi_head_8"], settings=("skills.n_skills=32", "skills.n_heads=8")
    ),
    "granularity_model": _polytropon("router.granularity=model"),
    "granularity_block": _polytropon("router.granularity=block"),
    # One skill with the parameters of all eight.
    "shared_rank_128": Method("router/shared.yaml", ("skills.rank=128",)),
    "shared_skill": _polytropon("router.shared_skill=true"),
    "annealed": _polytropon("router.final_temperature=0.1"),
    "no_noise": _polytropon("router.relaxed=false"),
    "token_top2_unbalanced": Method("router/token_top2.yaml", UNBALANCED),
    "token_switch_unbalanced": Method("router/token_switch.yaml", UNBALANCED),
    "token_prior": Method("router/token_prior.yaml"),
    "token_hybrid": Method("router/token_hybrid.yaml"),
}
ALL = {
    name: replace(method, ways=(*method.ways, *FURTHER_WAYS.get(name, ())))
    for name, method in (METHODS | ABLATIONS).items()
}
