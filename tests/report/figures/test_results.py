import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tables import NO_SECONDS, drawn, frame, rows

from fedcore.core.metrics import METRICS
from fedcore.report import figures
from fedcore.report.figures.drawing import png
from fedcore.report.figures.reports import cell_distances, heat_image, shares_of_mass, tables_over_rounds
from fedcore.report.figures.results import class_counts, class_shares, similarity
from fedcore.results.summary import curves, summarise

TWO = ["alone", "together"]
TWELVE = [f"method_{i:02d}" for i in range(12)]


def summary_of(table: pd.DataFrame, *controls: str) -> pd.DataFrame:
    return summarise(table, NO_SECONDS, frozenset(controls))


def texts(figure: Figure) -> list[str]:
    return [str(text.get_text()) for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "devices"), [(TWO, 4), (TWELVE, 32)])
def test_every_picture_names_every_method_and_is_drawn(methods: list[str], devices: int):
    table = drawn(methods, devices, rounds=3)
    summary = summary_of(table, methods[-1])
    for picture in (figures.comparison(summary), figures.curves(curves(table)), figures.per_device(table)):
        assert figures.png(picture).startswith(b"\x89PNG")
        assert set(methods) <= set(texts(picture))
        assert picture.get_figwidth() < 14


@pytest.mark.slow
def test_comparison_is_sorted_by_rank_with_the_controls_below():
    table = frame(rows({"poor": [[0.2, 0.2]], "good": [[0.9, 0.7]], "simple": [[0.95, 0.95]]}, shared=0.6))
    picture = figures.comparison(summary_of(table, "simple"))
    own, shared = picture.axes
    labels = [label.get_text() for label in own.get_yticklabels()]
    assert labels == ["good", "poor", "simple"]
    assert own.yaxis_inverted()
    assert [text.get_text() for text in shared.texts] == ["60.0%"] * 3
    assert [text.get_text() for text in own.texts] == ["80.0%", "20.0%", "95.0%", "controls"]


@pytest.mark.slow
def test_comparison_without_own_test_data_has_one_panel():
    table = frame(rows({"a": [[np.nan]], "b": [[np.nan]]}))
    assert [panel.get_title(loc="left") for panel in figures.comparison(summary_of(table)).axes] == ["shared test"]


@pytest.mark.slow
def test_intervals_end_where_accuracy_does():
    table = frame(*(rows({"a": [[0.7, 0.8], [1.0, 1.0]]}, at=at) for at in (1, 2)))
    table = table[table["split"] != "shared"]
    along = figures.accuracy_along(summary_of(table), {"alpha=1": {"federation.alpha": 1.0}}, "federation.alpha")
    for axis, picture in ((0, figures.comparison(summary_of(table))), (1, figures.curves(curves(table))), (1, along)):
        paths = [path for of in picture.axes[0].collections for path in of.get_paths()]
        ends = np.concatenate([path.vertices[:, axis] for path in paths])
        assert ends.max() == pytest.approx(1.0)


@pytest.mark.slow
def test_curves_draw_what_was_measured():
    table = frame(*(rows({"a": [[0.1 * at], [0.3 * at]]}, at=at) for at in (1, 2, 3)))
    line = figures.curves(curves(table)).axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), [0.2, 0.4, 0.6])


@pytest.mark.slow
def test_per_device_shows_one_seed_the_best_method_first():
    table = frame(rows({"a": [[0.1, 0.2], [0.9, 0.9]], "b": [[0.5, np.nan], [0.3, 0.3]]}))
    first, second = figures.per_device(table), figures.per_device(table, seed=1)
    np.testing.assert_allclose(first.axes[0].images[0].get_array().filled(-1), [[0.5, -1], [0.1, 0.2]])
    np.testing.assert_allclose(second.axes[0].images[0].get_array(), [[0.9, 0.9], [0.3, 0.3]])
    figures.png(first)


@pytest.mark.slow
def test_very_many_devices_are_drawn_by_their_shares():
    values = np.linspace(0, 1, 5000)
    table = frame(rows({"a": [values.tolist()], "b": [(values / 2).tolist()]}))
    picture = figures.per_device(table)
    own, other = (line.get_xydata() for line in picture.axes[0].lines)
    np.testing.assert_allclose(own[own[:, 0] <= 0.5][-1], [0.5, 0.5], atol=1e-3)
    np.testing.assert_allclose(other[-2:], [[0.5, 1], [1, 1]], atol=1e-3)
    assert figures.png(picture).startswith(b"\x89PNG")

    held = np.array([[9, 1], [2, 8], [6, 4]] * 1000)
    counts = pd.DataFrame(held, columns=["no", "yes"]).assign(n_train=10, n_val=1, n_test=1)
    picture = figures.class_counts(counts)
    shown = np.asarray(picture.axes[1].images[0].get_array())
    np.testing.assert_allclose(shown[0], [0.9] * 1000 + [0.6] * 1000 + [0.2] * 1000)
    np.testing.assert_allclose(shown.sum(axis=0), 1)
    assert figures.png(picture).startswith(b"\x89PNG")


@pytest.mark.slow
def test_heat_map_holds_the_matrix():
    matrix = np.arange(6.0).reshape(2, 3)
    picture = figures.heat_map(matrix, "links")
    np.testing.assert_array_equal(picture.axes[0].images[0].get_array(), matrix)
    figures.png(picture)
    figures.png(figures.heat_map([[1.0]], "one"))


@pytest.mark.slow
def test_transport_keeps_a_lone_match_visible():
    order = np.random.default_rng(0).permutation(400)
    plans = {"device/fc1": np.eye(400)[order] / 400, "device/fc2": np.full((3, 5), 1 / 15), "none": np.zeros((2, 2))}
    picture = shares_of_mass(plans)
    shown = [np.asarray(image.get_array()) for image in picture.axes[0].images]
    assert shown[0].shape == (96, 96)
    assert set(np.unique(shown[0])) == {0.0, 1.0}
    assert all((shown[0].max(axis) == 1).all() for axis in (0, 1))
    np.testing.assert_allclose(shown[1], np.full((3, 5), 0.2))
    np.testing.assert_array_equal(shown[2], np.zeros((2, 2)))
    figures.png(picture)
    assert len({heat_image(np.eye(3), *of) for of in ("ab", "aa", "bb")}) == 3  # whose units rows and columns are
    figures.png(shares_of_mass({f"plan {i}": np.eye(3) / 3 for i in range(7)}))


@pytest.mark.slow
def test_names_are_drawn_as_they_stand():
    table = drawn(["a$b$c", r"x_{$"], 4, rounds=2)
    table["device"] = "$" + table["device"] + "$"
    summary = summary_of(table)
    for picture in (figures.comparison(summary), figures.per_device(table), figures.curves(curves(table))):
        figures.png(picture)


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes():
    table = drawn(TWO, 4)
    first, second = (figures.png(figures.comparison(summary_of(table))) for _ in range(2))
    assert first == second


GRID = {
    f"devices={count} alpha={alpha}": {"federation.devices": count, "federation.alpha": alpha}
    for count in (2, 32) for alpha in (1.0, 0.1)
}  # fmt: skip


@pytest.mark.slow
def test_along_a_key_draws_a_panel_for_each_combination_of_the_others():
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in GRID])
    summary = summary_of(table, "together")
    picture = figures.accuracy_along(summary, GRID, "federation.devices")
    assert [panel.get_title(loc="left") for panel in picture.axes if panel.axison] == ["alpha = 1", "alpha = 0.1"]
    assert {*TWO, "2", "32", "devices"} <= set(texts(picture))
    first = picture.axes[0]
    assert first.get_xscale() == "log"
    for method, line in zip(summary["method"].unique(), [c.lines[0] for c in first.containers], strict=True):
        rows_ = summary[(summary["method"] == method) & summary["setting"].str.endswith("alpha=1.0")]
        assert sorted(line.get_ydata().tolist()) == pytest.approx(sorted(rows_["shared_mean"]))
        assert line.get_xdata().tolist() == [2, 32]
    assert figures.png(picture) == figures.png(figures.accuracy_along(summary, GRID, "federation.devices"))


@pytest.mark.slow
def test_along_a_key_of_names_keeps_their_order():
    grid = {f"net={net}": {"net": net} for net in ("mlp", "cnn")}
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in grid])
    picture = figures.accuracy_along(summary_of(table), grid, "net")
    assert [label.get_text() for label in picture.axes[0].get_xticklabels()] == ["mlp", "cnn"]


@pytest.mark.slow
def test_along_alpha_an_even_partition_stands_beside_the_others():
    """Neither 0.1 and 1 beside 1e20 nor powers of ten from 0.1 to 1e20 could be told apart."""
    grid = {f"alpha={alpha:g}": {"federation.alpha": alpha} for alpha in (1e20, 1.0, 0.1)}
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in grid])
    panel = figures.accuracy_along(summary_of(table), grid, "federation.alpha").axes[0]
    assert panel.get_xscale() == "linear"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0.1", "1", "even"]
    at, (left, right) = panel.get_xticks(), panel.get_xlim()
    assert min(np.diff([left, *at, right])[1:-1]) > 0.25 * (right - left)
    for line in (bars.lines[0] for bars in panel.containers):
        assert line.get_xdata().tolist() == at.tolist()


@pytest.mark.parametrize(("prices", "apart"), [((0, 0.01, 1, 1000), True), ((0, 0.1, 0.5, 1), False)])
@pytest.mark.slow
def test_along_a_price_none_stands_beside_powers_of_ten(prices: tuple[float, ...], apart: bool):
    grid = {f"phi_e={price:g}": {"st_lf.phi_e": price} for price in prices}
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in grid])
    panel = figures.accuracy_along(summary_of(table), grid, "st_lf.phi_e").axes[0]
    assert panel.get_xscale() == "linear"
    assert [label.get_text() for label in panel.get_xticklabels()] == [f"{price:g}" for price in prices]
    assert panel.get_xticks().tolist() == (list(range(len(prices))) if apart else list(prices))


@pytest.mark.slow
def test_a_panel_of_an_even_partition_says_so():
    grid = {f"devices={count}": {"federation.devices": count, "federation.alpha": 1e20} for count in (2, 32)}
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in grid])
    panel = figures.accuracy_along(summary_of(table), grid, "federation.devices").axes[0]
    assert panel.get_title(loc="left") == "alpha = even"


@pytest.mark.slow
def test_along_sets_of_places_without_a_shared_test_set():
    grid = {f"locations={'+'.join(sites)}": {"data.locations": sites} for sites in (["A"], ["A", "B"])}
    table = pd.concat([drawn(TWO, 3, setting=setting) for setting in grid])
    picture = figures.accuracy_along(summary_of(table[table["split"] != "shared"]), grid, "data.locations")
    assert [label.get_text() for label in picture.axes[0].get_xticklabels()] == ["A", "A+B"]
    assert {"locations", "accuracy on own test data"} <= set(texts(picture))


@pytest.mark.slow
def test_curves_of_several_settings_have_a_panel_each():
    table = pd.concat([drawn(TWO, 3, rounds=3, setting=setting) for setting in ("b", "a", "c", "d")])
    picture = figures.curves(curves(table))
    assert [panel.get_title(loc="left") for panel in picture.axes if panel.axison] == ["b", "a", "c", "d"]
    assert "accuracy on own test data" in texts(picture)
    figures.png(picture)


def matrix(count: int) -> tuple[pd.DataFrame, list[str]]:
    names = [f"d{i}" for i in range(count)]
    values = np.random.default_rng(0).uniform(0.2, 0.9, (count, count))
    return pd.DataFrame(values, names, names), names


@pytest.mark.slow
def test_similarity_puts_groups_together_and_writes_few_values():
    table, names = matrix(4)
    picture = figures.similarity(table, {"d0": "B", "d1": "A", "d2": "B"})
    order = ["d1", "d0", "d2", "d3"]  # d3 is in no group
    panel = picture.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == order
    np.testing.assert_array_equal(panel.images[0].get_array(), table.loc[order, order])
    assert len(panel.texts) == 16
    assert panel.texts[1].get_text() == f"{table.loc['d1', 'd0']:.2f}"[1:]
    assert len(panel.lines) == 2 * 2
    many, names = matrix(17)
    assert not figures.similarity(many, dict.fromkeys(names, "A")).axes[0].texts
    figures.png(picture)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 0.0, 1000.0])
def test_alignment_frames_the_cell_that_was_found(scale: float):
    found = {
        "one": {"a": {"depth": 1.0, "distance_0": 3.0, "distance_1": scale}, "b": {"depth": 0.0, "distance_0": 2.0}},
        "two": {"a": {"depth": 0.0, "distance_0": 1.0}},
    }
    picture = cell_distances(found)
    first, second = (panel for panel in picture.axes if panel.get_title(loc="left"))
    assert [first.get_title(loc="left"), second.get_title(loc="left")] == ["one", "two"]
    np.testing.assert_array_equal(first.images[0].get_array().filled(-1), [[3, scale], [2, -1]])
    frames = [(round(patch.get_x() + 0.46), round(patch.get_y() + 0.44)) for patch in first.patches]
    assert frames == [(1, 0), (0, 1)]
    assert [text.get_text() for text in first.texts] == ["3", f"{scale:.3g}", "2"]
    figures.png(picture)


@pytest.mark.slow
def test_features_have_a_colour_for_each_class_and_a_marker_for_each_group():
    points = pd.DataFrame({"x": range(6), "y": range(6), "label": [0, 1, 2, 0, 1, 2], "group": ["A"] * 3 + ["B"] * 3})
    picture = figures.features({"one": points, "two": points}, ["k0", "k1", "k2"])
    assert [len(panel.collections) for panel in picture.axes] == [6, 6]
    assert {"one", "two", "k0", "k1", "k2", "A", "B"} <= set(texts(picture))
    colours = {tuple(np.round(dots.get_facecolor()[0], 6)) for dots in picture.axes[0].collections}
    assert len(colours) == 3
    assert "A" not in texts(figures.features({"one": points.assign(group="A")}, ["k0", "k1", "k2"]))
    figures.png(picture)


@pytest.mark.slow
def test_soft_targets_are_drawn_over_rounds_beside_their_numbers():
    tables = {"dfl": {2**i: np.eye(3) * i / 10 for i in range(8)}, "fd": {1: np.eye(3)}}
    courses = {
        "dfl": {"rho": np.array([1.0, 0.5]), "right": np.array([3.0, 1.5]), "diagonal": np.array([1.0, 0.9])},
        "fd": {"right": np.array([3.0])},
    }
    picture = tables_over_rounds(tables, courses)
    lines = {panel.get_title(loc="left"): panel.lines for panel in picture.axes if panel.lines}
    assert {method: [line.get_label() for line in found] for method, found in lines.items()} == {
        "dfl": ["diagonal", "right", "rho"], "fd": ["right"],
    }  # fmt: skip
    assert lines["dfl"][1].get_ydata().tolist() == [1.0, 0.5]
    maps = {panel.get_title(): panel.images[0] for panel in picture.axes[:7] if panel.images}
    assert list(maps) == [f"round {n}" for n in (1, 2, 8, 16, 64, 128)]
    np.testing.assert_array_equal(maps["round 8"].get_array(), tables["dfl"][8])
    assert all(image.get_clim() == (0, 1) for image in maps.values())
    figures.png(picture)


@pytest.mark.parametrize("letters", [60, 400])
@pytest.mark.slow
def test_long_names_leave_a_picture_its_room(letters: int):
    """Matplotlib warns where they do not, and warnings are errors."""
    names = [f"{i} {'device' * letters}"[:letters] for i in range(5)]
    png(similarity(pd.DataFrame(np.eye(5), index=names, columns=names), dict.fromkeys(names, "g")))
    counts = pd.DataFrame(np.ones((5, 2), int), index=names, columns=["a", "b" * letters])
    png(class_counts(counts))
    png(class_shares(counts))


@pytest.mark.parametrize("of", ["nothing", "another metric"])
def test_a_metric_without_a_value_is_said_in_its_picture(of: str):
    """Such as the recall of a class that no device tests."""
    table = frame(rows({"a": [[0.5], [0.5]]}, at=1))
    course = curves(table) if of == "another metric" else curves(table).iloc[:0]
    picture = figures.curves(course, METRICS["recall"])
    assert f"no {METRICS['recall'].words} in any round" in texts(picture)
    assert png(picture).startswith(b"\x89PNG")
