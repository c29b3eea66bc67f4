"""What figures say (not their pixels), and that it can be read at 160 tasks."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scipy.cluster.hierarchy import leaves_list

from mttl.analysis.clustering import task_tree
from mttl.analysis.figures.canvas import save_figure
from mttl.analysis.figures.catalogue import ablation_map, drawings, layer_parts
from mttl.analysis.figures.curves import statistics_over_training, trade_offs
from mttl.analysis.figures.heat_maps import heat_maps, similarity_matrix
from mttl.analysis.figures.task_maps import dendrogram, task_map
from mttl.analysis.palette import COLOURS, UNKNOWN, category_looks
from mttl.analysis.routing_record import Ablation, RoutingRecord
from mttl.analysis.routing_view import RoutingView
from mttl.tasks.task_file import crossfit

TASKS = ("one", "two", "three", "four")
CATEGORIES = ("a", "b", "a", "c")
SIMILARITY = np.array(
    [[1.0, 0.1, 0.9, 0.3], [0.1, 1.0, 0.2, 0.8], [0.9, 0.2, 1.0, 0.2], [0.3, 0.8, 0.2, 1.0]]
)
ROUTING = RoutingRecord(Path("run"), TASKS, ("all",), np.zeros((1, 4, 3)), np.zeros((1, 4, 3)))
VIEW = RoutingView(ROUTING, CATEGORIES)
vars(VIEW)["similarity"] = SIMILARITY  # instead of that of the weights
ORDER = leaves_list(task_tree(SIMILARITY))


def texts(figure: Figure) -> list[Text]:
    """Return every text that is drawn."""
    figure.draw_without_rendering()
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    # Labels of ticks outside of the limits, and of hidden axes, are made but not drawn.
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not (axes.axison and low <= tick.get_loc() <= high):
                    found = [text for text in found if text not in (tick.label1, tick.label2)]
    return found


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def row_names(axes: Axes) -> list[str]:
    """Return the labels of the rows from top to bottom."""
    labels = sorted(axes.get_yticklabels(), key=lambda label: label.get_position()[1])
    return [label.get_text() for label in labels]


def test_heat_map_rows_follow_the_tree_with_their_categories_and_share_a_scale() -> None:
    weights = np.arange(12.0).reshape(1, 4, 3) / 12
    figure = heat_maps(weights, ["mean"], VIEW, "Weights")
    axes = figure.axes[0]
    names = [TASKS[task] for task in ORDER]
    assert row_names(axes) == names
    np.testing.assert_array_equal(axes.images[0].get_array(), weights[0][ORDER])
    looks = category_looks(CATEGORIES)
    inks = [to_hex(label.get_color()).upper() for label in axes.get_yticklabels()]
    assert inks == [looks[CATEGORIES[task]].ink for task in ORDER]
    assert {"Weights", "mean", "skill", "task", "a", "b", "c", "mixing weight"} <= set(
        words(figure)
    )
    # Below the map and above it.
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"] * 2
    # Several panels share one scale and one list of tasks.
    weights = np.stack([np.zeros((4, 3)), np.ones((4, 3))])
    names = ["encoder.block.0.layer.0.SelfAttention.q", "v"]
    figure = heat_maps(weights, names, VIEW, "Weights")
    shown = [axes for axes in figure.axes if axes.images]
    assert {axes.images[0].get_clim() for axes in shown} == {(0, 1)}
    assert row_names(shown[1]) == []
    # Long names break at dots.
    assert shown[0].get_title().replace("\n", "") == names[0]
    assert "\n" in shown[0].get_title()


def test_similarity_matrix_has_tasks_on_both_axes_and_no_diagonal() -> None:
    figure = similarity_matrix(SIMILARITY, VIEW, "Similarity")
    axes = figure.axes[0]
    names = [TASKS[task] for task in ORDER]
    assert row_names(axes) == names == [label.get_text() for label in axes.get_xticklabels()]
    shown = axes.images[0].get_array()
    assert np.ma.getmaskarray(shown).tolist() == np.eye(4, dtype=bool).tolist()
    assert shown[0, 3] == SIMILARITY[ORDER[0], ORDER[3]]
    assert shown.max() == pytest.approx(0.9)


def test_dendrogram_leaves_follow_the_tree_and_its_heights_are_the_merges() -> None:
    figure = dendrogram(VIEW, "Tree")
    axes = figure.axes[0]
    assert row_names(axes) == [TASKS[task] for task in ORDER]
    joints = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 4]
    assert sorted(joint[1] for joint in joints) == pytest.approx([0.1, 0.2, 0.8])
    left, right = axes.get_xlim()
    assert left > right == 0  # the root on the left


def test_statistics_over_training() -> None:
    values = {"usage": [1.0, 0.5], "encoder/usage": [1.0, 0.7], "discreteness": [0.0, 0.1]}
    curves = {name: (np.array([0, 10]), np.array(both)) for name, both in values.items()}
    figure = statistics_over_training(curves, title="Statistics")
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "step"]
    assert [axes.get_ylabel() for axes in panels] == ["discreteness", "usage"]
    assert [line.get_ydata().tolist() for line in panels[1].lines] == [[1, 0.5], [1, 0.7]]
    assert {"all", "encoder"} <= set(words(figure))
    assert "decoder" not in words(figure)


def test_task_map_names_every_point() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    (axes,) = task_map(points, VIEW, "Map", ("first", "second")).axes
    assert {text.get_text() for text in axes.texts} == set(TASKS)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("first", "second")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["model"], {}),
        (["encoder", "decoder"], {"encoder": [0], "decoder": [1]}),
        (["a.h.0.q", "a.h.0.v", "a.h.1.q"], {"a.h.0": [0, 1], "a.h.1": [2]}),
        (["encoder.h.0", "encoder.h.1", "decoder.h.0"], {"encoder": [0, 1], "decoder": [2]}),
        (["h.0/head 0", "h.0/head 1"], {"h.0": [0, 1]}),
        (["model/head 0", "model/head 1"], {"layers": [0, 1]}),
    ],
)
def test_layers_are_shared_among_figures(groups: list[str], expected: dict[str, list[int]]) -> None:
    assert dict(layer_parts(groups)) == expected


def check_legible(figure: Figure) -> None:
    """See that no two texts overlap; text at an angle is left out."""
    canvas = FigureCanvasAgg(figure)
    found = texts(figure)
    assert min(text.get_fontsize() for text in found) >= 7
    boxes = [(text, text.get_window_extent(canvas.get_renderer())) for text in found]
    upright = [(text, box) for text, box in boxes if text.get_rotation() % 90 == 0]
    corners = np.array([box.extents for _, box in upright])
    for number, (text, box) in enumerate(upright[:-1]):
        rest = corners[number + 1 :]
        across = np.minimum(rest[:, 2], box.x1) - np.maximum(rest[:, 0], box.x0)
        up = np.minimum(rest[:, 3], box.y1) - np.maximum(rest[:, 1], box.y0)
        hit = np.flatnonzero((across > 1) & (up > 1))  # pixels
        assert not hit.size, f"{text.get_text()!r} {upright[number + 1 + hit[0]][0].get_text()!r}"


@pytest.fixture(scope="module")
def drawn(crossfit_view: RoutingView) -> dict[str, Figure]:
    return dict(drawings(crossfit_view, crossfit_view))


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "name",
    [
        *("heat_map_encoder.layers.0", "similarity", "dendrogram", "dendrogram_radial"),
        *("task_map_pca", "statistics_by_layer"),
        *("statistics_over_training", "compare_crossfit"),
    ],
)
def test_160_tasks_are_legible(drawn: dict[str, Figure], name: str) -> None:
    check_legible(drawn[name])


def test_every_axis_is_named(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        axes = [axes for axes in figure.axes if axes.axison]
        bars = [one for one in axes if hasattr(one, "_colorbar")]
        panels = [one for one in axes if one not in bars]
        assert all(one.get_xlabel() for one in panels), name
        assert not panels or panels[0].get_ylabel(), name
        assert all(one.get_title(loc="left") for one in bars), name
    assert {"task_map_pca", "similarity", "dendrogram", "statistics_by_layer"} <= set(drawn)
    assert "radius: 1 − correlation, 0 at the tasks" in words(drawn["dendrogram_radial"])


def test_what_skills_are_for_is_drawn_beside_their_weights(crossfit_view: RoutingView) -> None:
    record = crossfit_view.record
    changes = np.zeros((1, *record.weights.shape[1:]))
    changes[0, 0, 0], changes[0, 1, 1] = 0.3, -0.1
    common = (record.tasks, ("all layers",), record.groups, crossfit_view.pairs)
    found = Ablation(*common, changes, None)
    figure = ablation_map(crossfit_view, found)
    check_legible(figure)
    weights, effect = (axes.images[0] for axes in figure.axes if axes.images)
    order = crossfit_view.order
    np.testing.assert_allclose(weights.get_array(), crossfit_view.mean[order], rtol=1e-14)
    np.testing.assert_array_equal(effect.get_array(), changes[0][order])
    assert effect.get_clim() == (-0.3, 0.3)
    # A loss that grows is red, and so is a score that falls.
    scored = replace(found, scores=changes / 100)
    fallen = ablation_map(crossfit_view, scored).axes[2].images[0]
    assert fallen.get_cmap()(0.0) == effect.get_cmap()(1.0)


def test_many_skills_are_legible() -> None:
    weights = np.random.default_rng(0).uniform(size=(2, 4, 40))
    check_legible(heat_maps(weights, ["x", "y"], VIEW, "W"))
    check_legible(heat_maps(weights[:1], [""], VIEW, "W"))


def test_files_are_written_whole_with_text_as_text(tmp_path: Path) -> None:
    settings = dict(matplotlib.rcParams)
    figure = dendrogram(VIEW, "Tree of <tasks> & more, $5 or $6")
    written = save_figure(figure, tmp_path / "plots" / "tree.block.0")
    png, svg, pdf = written
    names = [path.name for path in written]
    assert names == [f"tree.block.0.{suffix}" for suffix in ("png", "svg", "pdf")]
    assert pdf.read_bytes().startswith(b"%PDF")
    with Image.open(png) as drawn:
        pixels = np.asarray(drawn.convert("L"))
    assert min(pixels[0].min(), pixels[-1].min(), pixels[:, [0, -1]].min()) == 255  # all fits
    root = ElementTree.parse(svg).getroot()
    found = {"".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")}
    assert {"Tree of <tasks> & more, $5 or $6", *TASKS, "a", "b", "c"} <= found
    first = svg.read_bytes(), pdf.read_bytes()
    save_figure(figure, tmp_path / "plots" / "tree.block.0")
    assert (svg.read_bytes(), pdf.read_bytes()) == first  # the same figure gives the same file
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(names)
    assert dict(matplotlib.rcParams) == settings


def test_members_of_a_library_are_the_same_skill_in_every_group(crossfit_view: RoutingView) -> None:
    tasks = crossfit_view.record.tasks[:3]
    weights = np.random.default_rng(0).random((2, 3, 4))
    record = RoutingRecord(Path("library"), tasks, ("first", "second"), weights, weights)
    members = (tasks[2], "other", tasks[0], tasks[1])
    view = RoutingView(record, crossfit_view.categories[:3], members=members)
    ordered = [tasks[task] for task in view.order]
    assert view.skills == [*ordered, "other"]
    own = weights.mean(0)[:, [2, 3, 0]].diagonal()  # each task's weight for its own member
    assert view.mean[view.order].diagonal() == pytest.approx(own[view.order])
    (_, drawn), *_ = drawings(view)
    assert "skills matched" not in " ".join(words(drawn))
    assert [*ordered, "other"] == [x.get_text() for x in drawn.axes[0].get_xticklabels()]


def test_methods_are_curves_in_the_order_of_their_weights() -> None:
    points = [
        {"method": name, "weight": weight, "f1": weight / 2, "density": 0.1, "bleu": 1 - weight}
        for name, weight in (("b", 0.4), ("a", 0.2), ("b", 0.1))
    ]
    copying, quality = trade_offs(points, ["f1", "density", "bleu"], title="t").axes
    assert (copying.get_xlabel(), quality.get_ylabel()) == ("density, %", "f1, %")
    assert [line.get_xydata().tolist() for line in quality.lines] == [
        [[80.0, 10.0]],
        [[90.0, 5.0], [60.0, 20.0]],
    ]
    assert [text.get_text() for text in quality.texts] == ["0.2", "0.1", "0.4"]


def test_no_two_categories_of_crossfit_look_alike() -> None:
    looks = category_looks([task.category for task in crossfit().values()])
    assert len(looks) > len(COLOURS)
    assert len({(look.fill, look.marker) for look in looks.values()}) == len(looks)
    # Looks depend on the set of categories only.
    assert category_looks(["b", "a", "b"]) == category_looks(["a", "b"])
    assert category_looks([UNKNOWN, "a"])["a"] == category_looks(["a"])["a"]
