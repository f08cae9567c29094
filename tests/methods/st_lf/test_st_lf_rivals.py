"""ST-LF's rivals: how they choose sources and weights, and that what they share with ST-LF is the same."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from federations import NET, bits, half, last
from links import BOUNDS, COSTS, GIVEN, REPORTS, ROUND_INFO, D, planted, reported

from fedcore.core.evaluation import evaluate
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import builder, method
from fedcore.methods.st_lf.bound import theorem_2
from fedcore.methods.st_lf.heuristics import (
    average_degree,
    match_sources,
    nearest_source,
    one_source,
    random_halves,
    random_roles,
    random_weights,
    size_weights,
)
from fedcore.methods.st_lf.planning import LinkInputs, draw_links, plan_links
from fedcore.methods.st_lf.programs import SolverSettings
from fedcore.methods.st_lf.st_lf import of_least_bound, of_least_divergence, of_program
from fedcore.results.reports import matrices
from fedcore.types.method import Model, PairStage, Update, generator

DRAWN = {
    name: GIVEN[name] for name in ("nets", "training", "shared_init", "powers", "rates", "bits", "costs", "combine")
}
WITHOUT_CHOICE = {name: GIVEN[name] for name in GIVEN if name != "combine"}
WITH_PSI = ("rnd_alpha", "fedavg_alpha", "avg_degree", "least_error", "most_similar", "least_bound")
ALONE = ("rnd_psi", "psi_fedavg", "single_match")
PSI = np.array([0.0, 1, 0, 1, 1, 0])


def given(psi, **known):
    """The inputs of a rule for weights; what is not told is even."""
    n = len(psi)
    return LinkInputs(psi, **{"error": np.ones(n), "size": np.ones(n), "energy": np.ones((n, n)), **known})


def feasible(psi, alpha):
    np.testing.assert_allclose(alpha.sum(0), psi)
    assert (alpha >= 0).all()
    assert not alpha[psi == 1].any()


def draws(*words):
    return generator("rival", *words)


@pytest.mark.slow
def test_random_weights_use_every_link_and_are_dirichlet():
    drawn = np.stack([random_weights(given(PSI), replace(ROUND_INFO, seed=seed)) for seed in range(400)])
    for alpha in drawn:
        feasible(PSI, alpha)
        assert (alpha > 0).sum() == 9
    shares = drawn[:, PSI == 0][:, :, PSI == 1]
    np.testing.assert_allclose(shares.mean((0, 2)), 1 / 3, atol=0.03)
    np.testing.assert_allclose(shares.var((0, 2)), (1 / 3) * (2 / 3) / 4, rtol=0.15)  # of Dir(1, 1, 1)


def test_size_weights_are_the_sources_shares():
    alpha = size_weights(given(PSI, size=np.array([1.0, 50, 2, 50, 50, 5])), ROUND_INFO)
    feasible(PSI, alpha)
    for j in (1, 3, 4):
        np.testing.assert_allclose(alpha[:, j], [1 / 8, 0, 2 / 8, 0, 0, 5 / 8])


def test_the_source_of_least_error_is_linked_to_every_target():
    alpha = one_source(given(PSI, error=np.array([0.3, 0.0, 0.2, 0.1, 0.0, 0.2])), ROUND_INFO)
    feasible(PSI, alpha)
    assert alpha[2].tolist() == PSI.tolist()
    assert not one_source(given(np.zeros(3)), ROUND_INFO).any()


def test_the_most_similar_source_is_linked_to_each_target():
    """By hand: target 1 takes source 2, 3 the first of two, 4 source 5. Other targets are nearer than any source."""
    divergence = np.array(
        [
            [0.0, 0.5, 0.1, 0.3, 0.8, 0.1], [0.5, 0.0, 0.4, 0.2, 0.1, 0.9], [0.1, 0.4, 0.0, 0.3, 0.7, 0.1],
            [0.3, 0.2, 0.3, 0.0, 0.1, 0.6], [0.8, 0.1, 0.7, 0.1, 0.0, 0.6], [0.1, 0.9, 0.1, 0.6, 0.6, 0.0],
        ]
    )  # fmt: skip
    alpha = nearest_source(PSI, divergence)
    feasible(PSI, alpha)
    assert [alpha[:, j].argmax() for j in (1, 3, 4)] == [2, 0, 5]
    assert not nearest_source(np.zeros(3), np.ones((3, 3))).any()


def test_no_source_is_nearer_to_a_target_than_the_one_it_takes():
    """By a loop over the sources, with many ties; the matrix need not be symmetric: rows are sources."""
    rng, ties = np.random.default_rng(0), 0
    for n in [*range(1, 8)] * 20:
        psi, divergence = rng.integers(0, 2, n).astype(float), rng.integers(0, 4, (n, n)) / 2
        psi[rng.integers(n)] = 0
        wanted = np.zeros((n, n))
        for j in range(n):
            best = None
            for i in range(n):
                if psi[j] == 1 and psi[i] == 0:
                    ties += best is not None and divergence[i, j] == divergence[best, j]
                    if best is None or divergence[i, j] < divergence[best, j]:
                        best = i
            if best is not None:
                wanted[best, j] = 1
        assert nearest_source(psi, divergence).tolist() == wanted.tolist()
    assert ties > 50


@pytest.mark.slow
def test_the_least_bound_is_the_least_of_theorem_2_over_all_single_sources():
    """By trying all; with equal errors it is the most similar source, without divergences that of least error."""
    rng, differ = np.random.default_rng(0), 0
    for n in [*range(2, 8)] * 20:
        psi, error, divergence = rng.integers(0, 2, n).astype(float), rng.random(n), 2 * rng.random((n, n))
        psi[rng.integers(n)] = 0
        inputs = given(psi, error=error, divergence=divergence)
        alpha = of_least_bound(inputs, ROUND_INFO)
        feasible(psi, alpha)
        each = np.stack([theorem_2(np.eye(n)[i][:, None] * psi, error, divergence) for i in np.flatnonzero(psi == 0)])
        np.testing.assert_allclose(theorem_2(alpha, error, divergence), each.min(0))
        even, alone = replace(inputs, error=np.full(n, 0.3)), replace(inputs, divergence=np.zeros((n, n)))
        assert of_least_bound(even, ROUND_INFO).tolist() == of_least_divergence(inputs, ROUND_INFO).tolist()
        assert of_least_bound(alone, ROUND_INFO).tolist() == one_source(inputs, ROUND_INFO).tolist()
        differ += alpha.tolist() != of_least_divergence(inputs, ROUND_INFO).tolist()
    assert differ > 20


@pytest.mark.parametrize("count", [3, 6, 9])
def test_average_degree_has_as_many_links_as_it_should_and_serves_everyone(count):
    links = np.zeros((6, 6))
    pairs = [(i, j) for j in (1, 3, 4) for i in (0, 2, 5)]
    for i, j in pairs[:count]:
        links[i, j] = 1
    for seed in range(20):
        alpha = average_degree(given(PSI, alpha=links), replace(ROUND_INFO, seed=seed))
        feasible(PSI, alpha)
        out = (alpha > 0).sum(1)[PSI == 0]
        assert (out >= count // 3).all()
        assert out.sum() - count <= 2  # links of targets that nobody drew
    assert not average_degree(given(np.zeros(6), alpha=np.zeros((6, 6))), ROUND_INFO).any()


def test_single_matching_is_the_cheapest_of_all_matchings():
    psi, energy = np.array([0.0, 1, 0, 1, 0, 1]), torch.rand(6, 6, generator=draws(0), dtype=torch.float64).numpy()
    alpha = match_sources(given(psi, energy=energy), ROUND_INFO)
    feasible(psi, alpha)
    assert set((alpha > 0).sum(1)[psi == 0]) == {1}
    best = min(sum(energy[i, j] for i, j in zip(order, (1, 3, 5), strict=True)) for order in permutations((0, 2, 4)))
    assert energy[alpha > 0].sum() == pytest.approx(best)


def test_there_is_always_a_source_and_half_are_targets_if_matched():
    drawn = np.stack([random_roles(np.ones(2), draws(seed)) for seed in range(200)])
    assert (drawn == 0).any(1).all()
    assert {tuple(psi) for psi in drawn} == {(0, 0), (0, 1), (1, 0)}
    assert {random_halves(np.ones(n), draws(n)).sum() for n in (5, 4)} == {2}
    assert random_halves(np.ones(1), draws(0)).sum() == 0


@pytest.mark.slow
def test_devices_without_labels_are_targets_unless_all_may_send():
    may = np.array([1.0, 0, 1, 1, 0])
    drawn = np.stack([random_roles(may, draws(seed)) for seed in range(400)])
    assert drawn[:, may == 0].all()
    assert (drawn == 0).any(1).all()
    assert drawn[:, may == 1].mean() == pytest.approx(0.25, abs=0.04)
    assert random_halves(may, draws(0)).tolist() == [0, 1, 0, 0, 1]
    for name in ALONE:
        servers = {
            sources: [last(method(name, **DRAWN, sources=sources), half(), seed).state.server for seed in range(8)]
            for sources in ("labelled", "all")
        }
        assert all(server["psi"][2:].all() for server in servers["labelled"])
        assert not all(server["psi"][2:].all() for server in servers["all"])


def test_a_source_serves_more_targets_only_if_sources_are_few():
    psi, energy = np.array([0.0, 1, 0, 1, 1, 1]), torch.rand(6, 6, generator=draws(1), dtype=torch.float64).numpy()
    alpha = match_sources(given(psi, energy=energy), ROUND_INFO)
    feasible(psi, alpha)
    assert sorted((alpha > 0).sum(1)[psi == 0]) == [2, 2]


def test_each_rival_weighs_as_its_name_says():
    """On ST-LF's sources a and b, and on drawn ones; devices have 600, 500, 700 and 800 examples."""
    sizes, psi = np.array([600.0, 500, 700, 800]), np.array([0.0, 0, 1, 1])
    links = np.array([[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0.0]])
    known = given(psi, size=sizes, alpha=links)
    np.testing.assert_allclose(size_weights(known, ROUND_INFO)[:, 2:].T, [[6 / 11, 5 / 11, 0, 0]] * 2)
    assert len({*random_weights(known, ROUND_INFO)[:2, 2:].ravel().tolist()}) == 4
    one_each = (average_degree(known, ROUND_INFO) > 0).sum(1)
    assert one_each[:2].min() == 1
    assert one_each.sum() <= 3  # a target that nobody drew draws one
    others = [average_degree(known, replace(ROUND_INFO, seed=seed)) for seed in range(20)]
    assert len({alpha.tobytes() for alpha in others}) > 4  # drawn, not ST-LF's own
    sent = {name: Update(extra={"report": row}) for name, row in zip("abcd", REPORTS["report"], strict=True)}
    for seed in range(20):
        round_info = replace(ROUND_INFO, seed=seed)
        server, *_ = draw_links(
            {}, sent, round_info, costs=COSTS, rule=random_roles, sources="all", weights=size_weights
        )
        drawn, alpha = server["psi"].numpy(), server["alpha"].numpy()
        feasible(drawn, alpha)
        sources = np.where(drawn == 0, sizes, 0)
        np.testing.assert_allclose(alpha[:, drawn == 1].T, [sources / sources.sum()] * int(drawn.sum()))
        server, *_ = draw_links(
            {}, sent, round_info, costs=COSTS, rule=random_halves, sources="all", weights=match_sources
        )
        paired = server["psi"].numpy()
        assert (
            server["alpha"].tolist()
            == match_sources(given(paired, energy=server["energy"].numpy()), ROUND_INFO).tolist()
        )
        assert paired.sum() == 2


def told(built):
    return [one.report for one in run(built, half(), 2, Inline())]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_PSI)
def test_sources_targets_and_energies_are_st_lfs(name):
    mine, its = (matrices(told(method(what, **GIVEN))) for what in (name, "st_lf"))
    for key in ("psi", "energy", "divergence", "objective"):
        assert bits(mine[key]) == bits(its[key])
    feasible(mine["psi"].numpy(), mine["alpha"].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_random_ones_measure_nothing_over_pairs_and_share_energies(name):
    built = method(name, **DRAWN, sources="all")
    assert len(built.stages) == 3
    assert not any(isinstance(stage, PairStage) for stage in built.stages)
    server = last(built, half(), 2).state.server
    feasible(server["psi"].numpy(), server["alpha"].numpy())
    its = last(method("st_lf", **GIVEN), half(), 2).state.server
    assert bits(server["energy"]) == bits(its["energy"])
    other = last(built, half(), 4).state.server
    assert bits(server["alpha"]) != bits(other["alpha"])


@pytest.mark.slow
def test_the_ceiling_is_the_best_single_source_of_each_target():
    """By hand: every source's model on every target's test data, the most accurate taken."""
    fed = half()
    one = last(method("best_source", **WITHOUT_CHOICE), fed, 2)
    its = last(method("st_lf", **GIVEN), fed, 2)
    psi = its.state.server["psi"]
    assert bits(one.state.server["psi"]) == bits(psi)
    sources = [name for name, target in zip(fed.devices, psi, strict=True) if not target]
    for name, target in zip(fed.devices, psi, strict=True):
        if target:
            models = [Model((its.state.memories[source],)) for source in sources]
            reached = [evaluate(model, NET, fed.devices[name].data.test)["accuracy"] for model in models]
            assert one.scores[name]["test"]["accuracy"] == max(reached)
        else:
            assert one.scores[name] == its.scores[name]
    assert hasattr(builder("best_source"), "control")
    feasible(psi.numpy(), one.state.server["alpha"].numpy())


@pytest.mark.slow
def test_with_one_source_weights_do_not_matter():
    """Rnd-alpha, FedAvg's weights, AvgD and the controls are ST-LF where one device alone has labels."""
    fed = half(unknown="bcd")
    found = {name: last(method(name, **GIVEN), fed, 2) for name in ("st_lf", *WITH_PSI)}
    for name in WITH_PSI:
        assert found[name].scores == found["st_lf"].scores
        assert bits(found[name].state.server["alpha"]) == bits(found["st_lf"].state.server["alpha"])


def test_without_divergence_and_energy_the_optimum_is_the_control():
    """Then a target's best source is that of least error; divergences and energies are all that tells them apart."""
    reports = reported(*((error, 500, 600) for error in (0.3, 0.1, 0.2)), (0, 0, 600))
    solver = SolverSettings("exact", 3e-3, 60)
    near, far = np.zeros((4, 4)), 2 * (1 - np.eye(4))
    far[2, 3] = far[3, 2] = 0
    found = {}
    for name, weigh in (("st_lf", of_program), ("least_error", one_source)):
        for how, d, phi_e in (("free", near, 0.0), ("far", far, 1.0)):
            bounds = replace(BOUNDS, phi_e=phi_e)
            settings = {"bounds": bounds, "costs": COSTS, "solver": solver, "weights": weigh}
            found[name, how] = plan_links(reports, planted(d), ROUND_INFO, **settings)[0]
    for key in ("psi", "alpha", "theorem_2", "corollary_1"):
        assert bits(found["least_error", "free"][key]) == bits(found["st_lf", "free"][key])
    assert found["st_lf", "free"]["alpha"][1, 3] == 1
    assert found["st_lf", "far"]["alpha"][2, 3] == 1
    assert found["least_error", "far"]["alpha"][1, 3] == 1


def planned(weigh, reports=REPORTS, d=D, bounds=BOUNDS):
    """The server's memory and report, by a rule for weights."""
    settings = {"bounds": bounds, "costs": COSTS, "solver": SolverSettings("exact", 3e-3, 60), "weights": weigh}
    server, _, report = plan_links(reports, planted(d), ROUND_INFO, **settings)
    return server, report


def test_with_equal_errors_and_free_energy_the_optimum_is_most_similar():
    reports = reported(*((0.2, 500, 600) for _ in range(3)), (0, 0, 600))
    for nearest in range(3):
        d = 1.5 * (1 - np.eye(4))
        d[nearest, 3] = d[3, nearest] = 0.5
        settings = {"reports": reports, "d": d, "bounds": replace(BOUNDS, phi_e=0.0)}
        (mine, _), (its, _) = planned(of_least_divergence, **settings), planned(of_program, **settings)
        assert bits(mine) == bits(its)
        assert mine["alpha"][:, 3].tolist() == [float(i == nearest) for i in range(3)] + [0]


def test_the_most_similar_source_is_taken_though_another_errs_less():
    """Source a is nearer to target c than b is, and errs more: ST-LF takes b. All but links and bounds is the same."""
    d = D.copy()
    d[1, 2] = d[2, 1] = 0.4
    reports = reported((0.45, 500, 600), (0.05, 500, 500), (0, 0, 700), (0, 0, 800))
    mine, its = planned(of_least_divergence, reports, d), planned(of_program, reports, d)
    differ = {"alpha", "theorem_2", "corollary_1"}
    for one, other in ((mine[0], its[0]), (mine[1].matrices, its[1].matrices)):
        assert one.keys() == other.keys()
        assert {key for key in one if bits(one[key]) != bits(other[key])} == differ
    assert bits(mine[1].devices) == bits(its[1].devices)
    assert its[0]["alpha"][:, 2:].T.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]
    assert mine[0]["alpha"][:, 2:].T.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def moved(names):
    """Four devices, c and d without labels; the examples of those that are named lie elsewhere."""
    fed, there = half(), {}
    for name in names:
        own = fed.devices[name].data
        parts = {part: getattr(own, part) for part in ("train", "val", "test", "unlabelled")}
        there[name] = replace(
            fed.devices[name],
            data=replace(
                own, **{part: replace(data, x=data.x + 3) for part, data in parts.items() if data is not None}
            ),
        )
    return replace(fed, devices={**fed.devices, **there})


@pytest.mark.slow
def test_links_are_from_the_source_of_least_measured_divergence():
    """By Algorithm 1 on examples: b's and c's lie elsewhere, so that c takes b and d takes a. The rest is ST-LF's."""
    given = {**GIVEN, "pair_rounds": 20, "pair_iterations": 4}
    for seed, st_lfs in ((1, [1, 0]), (2, [1, 1])):
        mine, its = (
            matrices([one.report for one in run(method(name, **given), moved("bc"), seed, Inline())])
            for name in ("most_similar", "st_lf")
        )
        for key in ("psi", "divergence", "energy"):
            assert bits(mine[key]) == bits(its[key])
        assert mine["psi"].tolist() == [0, 0, 1, 1]
        for j in (2, 3):
            nearest = min((0, 1), key=lambda i: mine["divergence"][i, j])
            assert nearest == 3 - j
            assert mine["alpha"][:, j].tolist() == [float(i == nearest) for i in range(4)]
        assert its["alpha"].argmax(0).tolist()[2:] == st_lfs
    assert hasattr(builder("most_similar"), "control")


@pytest.mark.slow
def test_with_one_source_the_most_similar_one_is_the_others():
    """Bit by bit: FedAvg's weights and the control of least error have the same memories, links, bounds and scores."""
    fed = half(unknown="bcd")
    mine, *others = (last(method(name, **GIVEN), fed, 2) for name in ("most_similar", "fedavg_alpha", "least_error"))
    assert mine.state.server["psi"].tolist() == [0, 1, 1, 1]
    assert mine.state.server["alpha"][0].tolist() == [0, 1, 1, 1]
    for other in others:
        assert bits(mine.state) == bits(other.state)
        assert mine.scores == other.scores
