"""Figures of the routing. Each function returns a Matplotlib figure; no global state is touched."""

from mttl.analysis.figures.canvas import save_figure
from mttl.analysis.figures.catalogue import ablation_map, drawings, token_drawings
from mttl.analysis.figures.curves import statistics_by_layer, statistics_over_training
from mttl.analysis.figures.heat_maps import heat_maps, similarity_matrix
from mttl.analysis.figures.subset_table import subset_table
from mttl.analysis.figures.task_map import task_map
from mttl.analysis.figures.trees import dendrogram, radial_dendrogram

__all__ = [
    "ablation_map",
    "dendrogram",
    "drawings",
    "heat_maps",
    "radial_dendrogram",
    "save_figure",
    "similarity_matrix",
    "statistics_by_layer",
    "statistics_over_training",
    "subset_table",
    "task_map",
    "token_drawings",
]
