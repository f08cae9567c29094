"""Tests have names that can be read in one line."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = 70

STILL_LONG = {
    "test_a_device_that_errs_about_its_own_labels_is_found_out_by_the_servers_test_set",
    "test_a_device_that_joins_an_iid_federation_is_a_new_partition_with_the_old_shared_test",
    "test_a_device_that_was_sent_nothing_starts_from_its_own_leaves_whatever_the_round",
    "test_a_hit_has_a_second_one_of_the_other_sign_later_the_larger_the_defect",
    "test_a_message_reaches_a_device_once_a_turn_however_many_pairs_it_is_in",
    "test_a_place_where_seeds_differ_speaks_less_against_than_one_where_the_order_is_reversed",
    "test_a_report_counts_unlabelled_examples_and_says_how_wrong_the_labelled_ones_are",
    "test_a_stage_over_pairs_runs_on_every_unordered_pair_with_both_ones_belongings",
    "test_after_a_second_alignment_a_device_goes_on_with_its_own_deeper_cells",
    "test_an_identifier_is_trained_for_every_pair_once_both_have_shown_features",
    "test_an_identifier_learns_who_is_who_and_training_against_it_undoes_that",
    "test_corollary_is_alpha_times_the_target_bound_and_the_theorem_its_measurable_part",
    "test_devices_without_examples_weigh_nothing_or_where_nobody_has_any_the_same",
    "test_every_step_travels_to_another_process_and_gives_the_same_bits_there",
    "test_few_classes_are_as_many_as_said_and_their_holders_are_as_many_for_each",
    "test_likeness_within_and_across_groups_is_the_least_and_the_greatest_cosine",
    "test_models_of_other_widths_are_fused_and_every_device_gets_its_own_shapes",
    "test_numbers_of_a_fold_are_sums_of_iterations_and_bounds_and_means_of_the_rest",
    "test_of_a_program_gap_iterations_and_how_far_it_fell_and_rose_are_told_of_every_device",
    "test_of_targets_the_accuracy_is_told_and_how_far_bounds_are_above_their_error",
    "test_of_what_may_differ_by_so_much_the_place_where_it_differs_most_is_named",
    "test_one_step_on_all_examples_is_a_step_of_gradient_descent_on_their_union",
    "test_only_sources_with_a_link_send_their_model_and_reports_are_three_numbers",
    "test_parameters_are_the_weighted_mean_of_the_sources_and_sources_keep_their_own",
    "test_psi_fada_draws_rnd_psis_sources_and_targets_also_among_devices_without_labels",
    "test_shuffling_hidden_units_along_the_axes_leaves_the_function_unchanged",
    "test_targets_send_features_and_weights_sources_models_and_features_and_nobody_examples",
    "test_the_auxiliary_model_is_trained_from_the_common_start_on_the_servers_examples",
    "test_the_gap_grows_with_the_features_and_does_not_depend_on_where_they_are",
    "test_the_gap_is_the_formulas_over_the_clusters_of_an_independent_k_means",
    "test_the_gap_of_clusters_that_leave_no_doubt_is_the_one_worked_out_by_hand",
    "test_the_optimum_is_the_control_where_nothing_is_apart_and_links_are_free",
    "test_the_server_holds_the_windows_after_the_training_ones_of_the_first_place_alone",
    "test_the_server_keeps_no_features_in_the_end_and_ends_with_nothing_to_send",
    "test_the_source_of_least_error_serves_everyone_and_a_target_of_less_error_nobody",
    "test_there_is_always_a_source_and_half_of_the_devices_are_targets_where_they_are_matched",
    "test_unlabelled_devices_are_drawn_by_the_seed_and_most_stay_when_one_joins",
    "test_what_the_wide_devices_get_is_the_fused_function_where_their_models_are_split_copies",
    "test_who_was_never_chosen_runs_the_initial_model_and_has_the_latest_soft_targets",
    "test_with_one_source_and_weight_zero_it_does_not_matter_what_copies_start_from",
    "test_with_random_divergence_a_labelled_device_near_another_becomes_a_target",
    "test_with_the_bounds_of_eq_18_a_labelled_device_is_a_source_whatever_its_error",
    "test_without_alignment_a_target_runs_the_even_mean_of_what_sources_trained",
}
"""Names that are still to be shortened."""


def test_names_of_tests_are_short():
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    names = {name: file.name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(names) > 500
    assert {name: file for name, file in names.items() if len(name) > LONGEST and name not in STILL_LONG} == {}
    assert {*names} >= STILL_LONG
