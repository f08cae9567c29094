"""What the pictures of links show."""

import numpy as np
import pytest

from fedcore.report.figures import png
from fedcore.report.figures.reports import descent, divergences, link_graph, link_weights

NAMES = ["a", "b", "c", "d$"]
PSI = np.array([0.0, 1, 0, 1])
ALPHA = np.zeros((4, 4))
ALPHA[0, 1], ALPHA[2, 1], ALPHA[2, 3] = 0.25, 0.75, 1.0


@pytest.mark.slow
def test_the_heat_map_has_a_row_per_source_and_a_column_per_target() -> None:
    figure = link_weights(NAMES, PSI, ALPHA)
    panel = figure.axes[0]
    assert [t.get_text() for t in panel.get_yticklabels()] == ["a", "c"]
    assert [t.get_text() for t in panel.get_xticklabels()] == ["b", r"d\$"]
    np.testing.assert_array_equal(panel.images[0].get_array(), [[0.25, 0], [0.75, 1]])
    assert png(figure) == png(link_weights(NAMES, PSI, ALPHA))


def test_the_graph_has_a_line_per_link_as_wide_as_its_weight() -> None:
    lines = link_graph(NAMES, PSI, ALPHA).axes[0].lines
    assert [line.get_linewidth() for line in lines] == [1.25, 2.75, 3.5]


@pytest.mark.slow
def test_a_network_without_targets_has_no_link() -> None:
    for draw in (link_weights, link_graph):
        figure = draw(NAMES, np.zeros(4), np.zeros((4, 4)))
        assert not figure.axes[0].lines
        assert png(figure)


def test_divergences_are_written_but_for_a_device_and_itself() -> None:
    apart = np.array([[0, 0.5, 2], [0.5, 0, 1.25], [2, 1.25, 0]])
    panel = divergences(NAMES[:3], apart).axes[0]
    assert [text.get_text() for text in panel.texts] == ["0.50", "2.00", "0.50", "1.25", "2.00", "1.25"]


def test_the_descent_is_a_line_from_the_first_iteration() -> None:
    (line,) = descent({"st_lf": (3.0, 2.0, 1.5)}).axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), [[1, 3], [2, 2], [3, 1.5]])
