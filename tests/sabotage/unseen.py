"""Faults written from the code alone, by somebody who had not read the tests."""

from __future__ import annotations

from fault import Fault

NETWORKS = "tests/networks/test_network_ledger.py::"
ORIGINS = "tests/tables/test_origins.py::"
RECORDS = "tests/synthesis/test_bounds.py::"
LEDGER = "tests/privacy/test_ledger.py::"
ACCOUNT = "tests/commands/test_account.py::"
MECHANISM = "tests/releases/test_mechanism.py::"

NOTICED = (
    Fault(
        what="draws at a mode and sampled steps each use all of δ, not half",
        caught={
            "both-halves-get-the-whole-delta": (
                "tests/privacy/test_mode_draws.py::"
                "test_with_what_has_no_moments_by_basic_composition",
            ),
        },
    ),
    Fault(
        what="a removed record keeps its own curvature, so the mode moves too little",
        caught={
            "removed-record-keeps-its-own-curvature": (
                "tests/privacy/test_mode_draws.py::"
                "test_a_removed_record_is_an_added_one_of_a_smaller_table",
            ),
        },
    ),
    Fault(
        what="each layer's gradient is clipped by itself",
        caught={
            "each-layer-clipped-by-itself": (
                "tests/networks/test_gradients.py::test_against_a_loop",
            ),
        },
    ),
    Fault(
        what="a network that went back repeats its batches",
        caught={
            "a-rewound-network-repeats-its-batches": (
                NETWORKS + "test_a_copy_and_a_run_that_went_back_draw_coins_of_their_own",
            ),
        },
    ),
    Fault(
        what="without declared records a sum is divided by their exact number",
        caught={
            "sum-divided-by-the-exact-number-of-records": (
                "tests/networks/test_preflight.py::"
                "test_what_a_guarantee_assumes_of_the_number_of_records_is_said",
            ),
        },
    ),
    Fault(
        what="a copy takes the steps that were charged ahead for the original",
        caught={
            "a-copy-takes-the-steps-paid-ahead": (
                NETWORKS + "test_a_copy_has_no_budget_of_its_own",
            ),
        },
    ),
    Fault(
        what="long records bend the objective more than its price says",
        caught={
            "long-records-bend-the-objective": (
                "tests/regression/test_perturbed_objective.py::test_weights_bound_any_record",
            ),
        },
    ),
    Fault(
        what="the last matrix's noise counts for its own round only",
        caught={
            "last-matrix-counts-for-one-round": (
                "tests/regression/test_noisy_scores.py::"
                "test_the_noise_of_the_matrices_is_what_each_of_their_entries_does",
            ),
        },
    ),
    Fault(
        what="another price draws the same noise",
        caught={
            "another-price-draws-the-same-noise": (
                "tests/releases/test_transaction.py::"
                "test_another_price_work_or_step_has_another_key",
            ),
        },
    ),
    Fault(
        what="a secret stays beside its output",
        caught={
            "a-secret-outlives-its-output": (
                "tests/releases/test_intent.py::"
                "test_a_secret_is_erased_before_anything_is_published_and_not_before_it_is_kept",
            ),
        },
    ),
    Fault(
        what="a ledger written anew with smaller charges passes",
        caught={
            "a-head-counts-lines-only": (LEDGER + "test_every_flipped_bit_is_noticed",),
        },
    ),
    Fault(
        what="noise of counts is rounded down",
        caught={
            "count-noise-rounded-down": (
                "tests/synthesis/test_price.py::test_noise_has_the_normal_law_of_whole_numbers",
            ),
        },
    ),
    Fault(
        what="each part of a table in blocks tosses the first part's coins",
        caught={
            "every-part-tosses-the-first-coins": (
                "tests/programs/test_records_on_disk.py::"
                "test_training_on_blocks_is_that_in_memory_to_the_bit",
            ),
        },
    ),
    Fault(
        what="with weights the intercept's prior mean is off by a factor of two",
        caught={
            "prior-mean-of-the-intercept-not-halved": (
                "tests/models/test_weighted.py::test_the_fit_is_the_largest_weighted_elbo",
            ),
        },
    ),
    Fault(
        what="the softmax loss claims the self-concordance of the logistic one",
        caught={
            "classes-as-concordant-as-two": (
                "tests/bayesian/mode/test_ranges.py::test_bounds_of_the_softmax",
            ),
        },
    ),
    Fault(
        what="a covariance is widened by LLᵀ in place of LᵀL",
        caught={
            "ridge-on-the-outer-side": (
                "tests/guides/test_low_rank.py::"
                "test_covariance_is_diagonal_plus_low_rank_and_widened_by_the_ridge",
            ),
        },
    ),
    Fault(
        what="a converted low-rank guide loses its scale",
        caught={
            "low-rank-part-loses-its-scale": (
                "tests/guides/test_converted.py::"
                "test_trained_parameters_are_the_start_if_they_are_public",
            ),
        },
    ),
    Fault(
        what="each of a person's names has all of δ",
        caught={
            "names-of-a-person-share-no-delta": (
                RECORDS + "test_a_person_s_names_are_published_with_at_most_its_delta",
            ),
        },
    ),
    Fault(
        what="the score of whole numbers has the noise of a count",
        caught={
            "score-of-whole-numbers-noised-as-a-count": (
                RECORDS + "test_the_noise_that_is_drawn_is_the_noise_that_is_charged",
            ),
        },
    ),
    Fault(
        what="noise of private means covers one of two sums",
        caught={
            "noise-for-one-of-two-sums": (
                "tests/datasets/test_exact.py::test_noise_of_means_covers_one_number_more",
            ),
        },
    ),
    Fault(
        what="means of the rows are called public",
        caught={
            "means-of-the-rows-called-public": (
                ORIGINS + "test_estimators_say_where_their_constants_are_from",
            ),
        },
    ),
    Fault(
        what="a declared number of rows is published exactly",
        caught={
            "declared-rows-published-exactly": (
                ORIGINS + "test_what_was_declared_is_said_and_no_more",
            ),
        },
    ),
    Fault(
        what="replicates add the noise of columns to pairs",
        caught={
            "replicated-pairs-get-the-noise-of-columns": (
                "tests/synthesis/test_combine.py::"
                "test_redrawn_counts_have_the_mean_and_twice_the_noise",
            ),
        },
    ),
    Fault(
        what="a round is released with too few noise shares",
        caught={
            "released-with-too-few-noise-shares": (
                "tests/federated/test_federation.py::test_shares_add_up_to_the_noise_of_the_round",
            ),
        },
    ),
    Fault(
        what="an unclipped record moves its client's update by one clip, not two",
        caught={
            "a-record-moves-its-client-by-one-clip": (
                "tests/federated/test_federated_vi.py::"
                "test_the_tables_ledgers_are_charged_what_it_does_to_records",
            ),
        },
    ),
    Fault(
        what="log odds are averaged over draws, not probabilities",
        caught={
            "log-odds-averaged-over-draws": (
                "tests/sklearn/test_sklearn.py::test_predictions_are_those_of_the_release",
            ),
        },
    ),
    Fault(
        what="classes taken from the labels go unsaid",
        caught={
            "classes-from-the-labels-go-unsaid": (
                "tests/sklearn/test_sklearn.py::test_exact_constants_need_consent_and_are_named",
            ),
        },
    ),
    Fault(
        what="rows of one person are counted and held out",
        caught={
            "rows-of-a-person-on-both-sides": (
                "tests/synthesis/test_report.py::test_who_is_kept_out_depends_on_no_other_row",
            ),
        },
    ),
    Fault(
        what="each of two sums gets the noise of one alone",
        caught={
            "each-statistic-gets-the-whole-price": (
                "tests/bench/test_statistics.py::test_the_noise_is_what_each_norm_needs",
            ),
        },
    ),
    Fault(
        what="a text behind a blank passes for no formula",
        caught={
            "a-formula-behind-a-blank": (
                "tests/test_outputs.py::test_each_cell_is_one_line_and_no_formula",
            )
        },
    ),
    Fault(
        what="a sum clipped at C has the noise of a clip of 1",
        caught={
            "noise-for-a-clip-of-one": (
                "tests/bench/test_dp_gd.py::test_noise_of_one_step_has_the_promised_variance",
            )
        },
    ),
    Fault(
        what="a table's total spend stands among what is public",
        caught={
            "the-table-s-spend-in-public": (
                "tests/synthesis/test_commands.py::"
                "test_without_a_schema_constants_are_bought_under_the_same_epsilon",
            )
        },
    ),
    Fault(
        what="a client adds its noise share to an update that is not clipped",
        caught={
            "a-share-on-an-unclipped-update": (
                "tests/federated/test_federation.py::test_shares_add_up_to_the_noise_of_the_round",
            )
        },
    ),
    Fault(
        what="a record's rate is multiplied by its client's",
        caught={
            "a-record-s-rate-times-its-client-s": (
                "tests/federated/test_rounds.py::"
                "test_both_views_have_the_noise_rate_and_relation_of_the_observer",
            )
        },
    ),
    Fault(
        what="a client sends what its exception says",
        caught={
            "a-client-sends-its-error-s-text": (
                "tests/federated/test_flower.py::"
                "test_the_mod_keeps_what_an_exception_says_to_the_client",
            )
        },
    ),
    Fault(
        what="the bound on scores of counts forgets small ones",
        caught={
            "score-of-large-counts-only": (
                "tests/bayesian/mode/test_ranges.py::test_bounds_hold_everywhere_and_are_reached",
            )
        },
    ),
    Fault(
        what="a category's columns are longer together than one",
        caught={
            "a-category-as-long-as-its-levels": (
                "tests/models/test_one_hot.py::test_a_category_counts_once_in_score_row_and_prior",
            )
        },
    ),
    Fault(
        what="public class weights go unsaid",
        caught={
            "class-weights-go-unsaid": (
                "tests/sklearn/test_persons_and_weights.py::"
                "test_class_weights_move_the_model_as_without_privacy_at_no_price",
            )
        },
    ),
    Fault(
        what="groups of columns are counted on top of the price",
        caught={
            "groups-on-top-of-the-price": (
                "tests/synthesis/test_price.py::test_a_row_moves_the_counts_by_the_distance",
            )
        },
    ),
    Fault(
        what="kinds of columns are bought on top of the price",
        caught={
            "kinds-beside-the-share-of-constants": (
                "tests/synthesis/test_bounds.py::"
                "test_the_noise_that_is_drawn_is_the_noise_that_is_charged",
            )
        },
    ),
    Fault(
        what="draws at any temperature have the lattice of temperature 1",
        caught={
            "a-lattice-at-temperature-one": (
                "tests/bayesian/test_guarantees.py::"
                "test_rounding_error_by_hand_covers_every_neighbour_within_reach",
            )
        },
    ),
    Fault(
        what="a prior of the records passes",
        caught={
            "a-prior-of-the-records-passes": (
                "tests/guides/test_checks.py::test_every_misfit_is_named_with_its_remedy",
            )
        },
    ),
    Fault(
        what="an audit bounds both rates at the level of one",
        caught={
            "one-bound-for-two-rates": (
                "tests/audits/test_audits.py::test_rates_are_of_the_turns_that_chose_no_threshold",
            )
        },
    ),
    Fault(
        what="an audit counts the turns that chose its threshold",
        caught={
            "rates-of-the-turns-that-chose": (
                "tests/audits/test_audits.py::test_rates_are_of_the_turns_that_chose_no_threshold",
            )
        },
    ),
)
"""Faults that a test noticed as it was."""

MISSED = (
    Fault(
        what="doubt is not divided among added and removed records",
        caught={
            "doubt-not-divided-among-relations": (
                "tests/bayesian/test_statements.py::test_a_typical_epsilon_is_the_order_statistic",
            ),
        },
    ),
    Fault(
        what="a total with a threshold passes for a Gaussian mechanism in groups",
        caught={
            "a-threshold-keeps-the-distance": (
                "tests/privacy/test_worst_case.py::"
                "test_with_a_threshold_a_total_is_no_gaussian_mechanism",
            ),
        },
    ),
    Fault(
        what="neighbouring seeds share coins",
        caught={
            "neighbouring-seeds-share-coins": (
                "tests/noise/test_batches.py::test_no_two_seeds_or_steps_share_coins_or_noise",
            ),
        },
    ),
    Fault(
        what="parts of one sum share their noise",
        caught={
            "parts-of-a-sum-share-their-noise": (
                MECHANISM + "test_parts_of_a_sum_have_noise_of_their_own",
            ),
        },
    ),
    Fault(
        what="a charge is not forced to disk before the draw",
        caught={
            "a-charge-left-in-the-cache": (
                LEDGER + "test_a_charge_is_on_the_disk_before_it_returns",
            ),
        },
    ),
    Fault(
        what="a resumed training forgets the noise so far",
        caught={
            "a-resumed-training-forgets-its-noise": (
                "tests/programs/test_dpvi_route.py::"
                "test_a_resumed_training_counts_the_noise_of_all_its_steps",
            ),
        },
    ),
    Fault(
        what="bins are merged by exact counts",
        caught={
            "bins-merged-by-the-exact-counts": (
                "tests/synthesis/test_model.py::test_bins_are_of_the_noisy_counts_alone",
            ),
        },
    ),
    Fault(
        what="a command's budget is kept at the usual δ",
        caught={
            "budget-at-the-usual-delta": (
                ACCOUNT + "test_it_says_when_what_for_which_file_and_at_which_epsilon",
            ),
        },
    ),
    Fault(
        what="an account is shown at a fixed δ",
        caught={
            "account-at-a-fixed-delta": (
                ACCOUNT + "test_it_says_when_what_for_which_file_and_at_which_epsilon",
            ),
        },
    ),
    Fault(
        what="steps of several noises are priced at the last",
        caught={
            "priced-at-the-last-noise": (
                MECHANISM + "test_sums_of_several_noises_are_priced_at_the_least",
            ),
        },
    ),
    Fault(
        what="a new name is not forced to disk",
        caught={
            "a-rename-left-in-the-cache": (
                "tests/_ground/test_store.py::test_a_new_name_is_on_the_disk_before_it_counts",
            )
        },
    ),
    Fault(
        what="a shared file is read whole before its size is checked",
        caught={
            "a-shared-file-is-read-whole": (
                "tests/_ground/test_store.py::"
                "test_no_more_of_a_shared_file_is_read_than_it_may_have",
            )
        },
    ),
    Fault(
        what="noise chosen from the records goes unsaid",
        caught={
            "noise-from-the-records-goes-unsaid": (
                "tests/bench/test_dp_gd.py::"
                "test_noise_chosen_from_the_records_is_said_and_has_no_worst_case",
            )
        },
    ),
    Fault(
        what="a work with other held-out rows goes on with the same noise",
        caught={
            "another-held-out-share-goes-on": (
                "tests/synthesis/test_commands.py::"
                "test_a_secret_folder_is_of_one_table_and_of_one_command",
            )
        },
    ),
    Fault(
        what="what records draw follows from what latents drew",
        caught={
            "coins-follow-the-draw": (
                "tests/programs/test_programs.py::"
                "test_what_records_draw_does_not_follow_from_what_latents_drew",
            )
        },
    ),
    Fault(
        what="a table that grew is trained on",
        caught={
            "a-table-that-grew-is-trained-on": (
                "tests/programs/test_records_on_disk.py::"
                "test_a_table_that_changes_during_training_is_named",
            )
        },
    ),
    Fault(
        what="rounding is counted for columns alone",
        caught={
            "rounding-of-the-columns-alone": (
                "tests/synthesis/test_price.py::"
                "test_rounding_is_that_of_every_cell_that_is_counted",
            )
        },
    ),
    Fault(
        what="a public start is trained in place",
        caught={
            "a-public-start-is-trained-in-place": (
                "tests/guides/test_low_rank.py::test_a_public_start_stays_as_it_was_given",
            )
        },
    ),
    Fault(
        what="an audit forgets the opposite guess",
        caught={
            "the-opposite-guess-left-out": (
                "tests/audits/test_audits.py::test_the_opposite_guess_refutes_too",
            )
        },
    ),
    Fault(
        what="an audit goes on with runs at another ε",
        caught={
            "runs-at-another-price-go-on": (
                "tests/audits/test_audits.py::test_runs_at_another_price_do_not_go_on",
            )
        },
    ),
    Fault(
        what="an audit of a mean looks in one direction",
        caught={
            "one-direction-of-a-mean": (
                "tests/audits/test_audits.py::test_a_mean_is_over_both_directions",
            )
        },
    ),
)
"""Faults that no test noticed at first. Each got a test, or a test that had to be sharper."""

UNSEEN = NOTICED + MISSED
