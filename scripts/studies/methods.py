"""Methods and adaptation variants that only the studies compare, beside those of `mttl compare`."""

from dataclasses import replace

from mttl.commands.comparison.methods import METHODS, AdaptationVariant, Method

MEAN_ROW = AdaptationVariant("mean_row", ("adapt.mode=all", "adapt.init=mean"))
# Full fine-tuning of the backbone, without the inventory.
BARE_FULL = AdaptationVariant(
    "bare_full", ("adapt.mode=full", "adapt.init=private_skill", "adapt.lr=1e-3")
)
FRESH_ROW = AdaptationVariant("fresh_row", ("adapt.mode=all", "adapt.init=fresh"))
FROM_NEAREST_TASK = AdaptationVariant(
    "from_nearest_task", ("adapt.mode=all", "adapt.init=nearest_task")
)
# Adapted twice, from the best row and from the mean; the better one on development rows is kept.
BEST_OF_TWO = AdaptationVariant("best_of_two", ("adapt.mode=all", "adapt.init=best_of_two"))
GIVEN_ROW = AdaptationVariant("given_row", ("adapt.mode=zero_shot", "adapt.init=expert_row"))
# Polytropon's routing weights, learned over skills that another router has trained.
LEARNED_ROW = AdaptationVariant("learned_row", ("adapt.mode=router_only", "adapt.init=learned"))
# Unconstrained coefficients, from 1 / K or from the nearest task.
FREE_VARIANTS = tuple(
    AdaptationVariant(
        init, ("adapt.mode=router_only", f"adapt.init={init}", "adapt.router_lr=2e-2")
    )
    for init in ("coefficients", "best_coefficients")
)
PRIVATE_VARIANTS = (FROM_NEAREST_TASK, LEARNED_ROW, *FREE_VARIANTS, MEAN_ROW)
FURTHER_VARIANTS = {
    "polytropon": (MEAN_ROW, BEST_OF_TWO, *FREE_VARIANTS, FRESH_ROW, BARE_FULL),
    "private": PRIVATE_VARIANTS,
    "expert": (GIVEN_ROW, *PRIVATE_VARIANTS),
    "hyperformer": (MEAN_ROW, BEST_OF_TWO),
    "task_moe": (MEAN_ROW, BEST_OF_TWO),
    "multi_head_2": FREE_VARIANTS,
    "multi_head_4": FREE_VARIANTS,
    "multi_head_8": FREE_VARIANTS,
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
    name: replace(method, variants=(*method.variants, *FURTHER_VARIANTS.get(name, ())))
    for name, method in (METHODS | ABLATIONS).items()
}
