"""Registry of built-in parts: names and classes as text, without imports.

A new part is a file with its class, and a line here; then run ``python -m mttl.plugins.describe``.
A plug-in class needs no line; a configuration names it as ``module:Class``.

**A part describes itself.** Its constructor defines its section of the configuration. Rules:

1. Arguments supplied by the program come first and are named in its `Family`; others that
configurations do not set, such as the rank of a library's members, are named in ``internal``.
2. All other arguments are settings: keyword-only, with a type, bounds
(`mttl.plugins.part_settings`) and a default. ``**settings`` stands for those of the base class. A
dataclass is a nested section.
3. The first line of the docstring describes the part, and ``Args`` each setting that the base class
does not describe.
4. ``lacks`` has unsupported features, each with a reason, or with a condition on the settings and a
reason; ``asks`` features required of other parts; ``refuses`` conditions that bounds cannot
express, each with a message in which ``{name}`` is a value. Entries of base classes are inherited.
See `mttl.config.capabilities`.
5. Two uses of a class with different settings are two classes: `SwitchRouter` is a `TopKRouter`.
6. Settings that only training needs, such as ``final_temperature``, are stored in the object.
Arguments read from a file have another type and are marked by `ReadFrom`.
7. ``section_defaults`` has defaults for configurations that differ from the constructor's, and
those of settings common to the family, such as ``targets`` of skills.
8. A router with a setting ``n_private`` has this number of additional skills per task.
"""

PARTS: dict[str, dict[str, str]] = {
    "routers": {
        "polytropon": "mttl.routing.task.polytropon:PolytroponRouter",
        "metadata": "mttl.routing.task.metadata:MetadataRouter",
        "c_poly": "mttl.routing.task.c_poly:CPolyRouter",
        "categorical": "mttl.routing.task.categorical:CategoricalRouter",
        "score_function": "mttl.routing.task.categorical:ScoreFunctionRouter",
        "random": "mttl.routing.task.fixed:RandomRouter",
        "shared": "mttl.routing.task.fixed:SharedRouter",
        "private": "mttl.routing.task.fixed:PrivateRouter",
        "average": "mttl.routing.task.fixed:AverageRouter",
        "expert": "mttl.routing.task.fixed:ExpertRouter",
        "task_moe": "mttl.routing.task.task_moe:TaskMoERouter",
        "xlora": "mttl.routing.task.xlora:XLoRARouter",
        "hyperformer": "mttl.routing.task.hyperformer:HyperFormerRouter",
        "coefficients": "mttl.routing.task.fixed:CoefficientRouter",
        "smear": "mttl.routing.task.prompt_router:SmearRouter",
        "retrieval": "mttl.routing.task.prompt_router:RetrievalRouter",
        "none": "mttl.routing.task.fixed:NoRouter",
    },
    "token_routers": {
        "top_k": "mttl.routing.token.top_k:TopKRouter",
        "switch": "mttl.routing.token.top_k:SwitchRouter",
        "noisy_top_k": "mttl.routing.token.top_k:NoisyTopKRouter",
        "gshard": "mttl.routing.token.top_k:GShardRouter",
        "expert_choice": "mttl.routing.token.expert_choice:ExpertChoiceRouter",
        "base": "mttl.routing.token.base:BaseRouter",
        "hash": "mttl.routing.token.hash:HashRouter",
        "example": "mttl.routing.token.top_k:ExampleRouter",
        "arrow": "mttl.routing.token.members:ArrowRouter",
        "spectral": "mttl.routing.token.members:SpectralRouter",
        "phatgoose": "mttl.routing.token.members:PhatgooseRouter",
    },
    "skills": {
        "lora": "mttl.skills.weights.lora:LoRAInventory",
        "mtl_lora": "mttl.skills.weights.mtl_lora:MTLLoRAInventory",
        "dora": "mttl.skills.weights.dora:DoRAInventory",
        "vera": "mttl.skills.weights.vera:VeRAInventory",
        "ia3": "mttl.skills.weights.ia3:IA3Inventory",
        "dense": "mttl.skills.weights.dense:DenseInventory",
        "sparse": "mttl.skills.weights.sparse:SparseInventory",
        "masked_sparse": "mttl.skills.weights.masked_sparse:MaskedSparseInventory",
        "far": "mttl.skills.weights.far:FARInventory",
        "supermask": "mttl.skills.weights.supermask:SupermaskInventory",
        "bitfit": "mttl.skills.weights.bitfit:BitFitInventory",
        "norm": "mttl.skills.weights.norm:NormInventory",
        "krona": "mttl.skills.weights.krona:KronAInventory",
        "krona_block": "mttl.skills.weights.krona:KronABlockInventory",
        "head_mask": "mttl.skills.weights.head_mask:HeadMaskInventory",
        "prefix": "mttl.skills.inputs.prefix:PrefixInventory",
        "prompt": "mttl.skills.inputs.prompt:PromptInventory",
        "ipt": "mttl.skills.inputs.ipt:IntrinsicPromptInventory",
        "adapter": "mttl.skills.blocks.adapter:AdapterInventory",
        "compacter": "mttl.skills.blocks.compacter:CompacterInventory",
        "sparse_adapter": "mttl.skills.blocks.adapter:SparseAdapterInventory",
        "invertible": "mttl.skills.blocks.invertible:InvertibleInventory",
        "ladder": "mttl.skills.blocks.ladder:LadderInventory",
        "intrinsic": "mttl.skills.weights.intrinsic:IntrinsicInventory",
        "diff_pruning": "mttl.skills.weights.diff_pruning:DiffPruningInventory",
    },
    "policy_skills": {
        "residual": "mttl.skills.composed.residual:ResidualInventory",
    },
    "experts": {
        "lora": "mttl.skills.weights.lora:LoRAExperts",
        "ia3": "mttl.skills.weights.ia3:IA3Inventory",
        "adapter": "mttl.skills.blocks.adapter:AdapterExperts",
        "lora_block": "mttl.skills.blocks.lora_block:LoRABlockExperts",
    },
    "metrics": {
        "knowledge_f1": "mttl.metrics.grounding:KnowledgeF1",
        "coverage": "mttl.metrics.grounding:Coverage",
        "density": "mttl.metrics.grounding:Density",
        "lcs": "mttl.metrics.grounding:CommonSubsequence",
        "bleu": "mttl.metrics.overlap:Bleu",
        "chrf": "mttl.metrics.overlap:ChrF",
        "bertscore": "mttl.metrics.judges:BertScore",
        "critic": "mttl.metrics.judges:Critic",
        "inverse_perplexity": "mttl.metrics.judges:InversePerplexity",
        "q2": "mttl.metrics.q2:Q2",
    },
}
