"""Faults that would make an ε wrong: as a patch and the tests that must catch it, or as a hole."""

from __future__ import annotations

from fault import Fault
from unseen import UNSEEN

CLIPPED = (
    "tests/conformance/test_clipped_is_added.py::test_a_record_moves_a_sum_by_one_clip_at_most"
)
SECURE = "tests/noise/test_secure.py::"
DEEP = "tests/networks/test_deep.py::"
PREFLIGHT = "tests/networks/test_preflight.py::"
SCORES = "tests/regression/test_noisy_scores.py::"
INTENT = "tests/releases/test_intent.py::test_a_key_meets_no_other_table_price_or_options"
KEYS = "tests/releases/test_transaction.py::"
BOUGHT = "tests/synthesis/test_bounds.py::"
LEDGER = "tests/privacy/test_ledger.py::"
STICK = "tests/bayesian/accounting/test_hockey_stick.py::"
GROUPS = "tests/bayesian/accounting/test_every_group.py::"
WORST = "tests/privacy/test_worst_case.py::"
GUARANTEES = "tests/bayesian/test_guarantees.py::"
RELEASES = "tests/bayesian/test_releases.py::"
WEIGHTED = "tests/models/test_weighted.py::"
ROUTES = "tests/tables/test_routes.py::"
ORIGINS = "tests/tables/test_origins.py::"
FACTS = "tests/conformance/test_facts.py::"
REACH = "tests/conformance/test_reach_of_functions.py::"
ACCOUNT = "tests/conformance/test_same_rows.py::"
TABLE = "tests/tables/test_accounts.py::"

SEEN = (
    Fault(
        what="noise × 0.9",
        caught={
            "noise-too-small": (SECURE + "test_the_noise_is_no_less_than_it_should_be",),
            "noise-of-draws-too-small": (
                RELEASES + "test_samples_have_the_mean_and_covariance_of_the_tempered_guide",
            ),
            "noise-of-counts-too-small": (
                "tests/synthesis/test_price.py::test_noise_is_never_less_than_it_should_be",
            ),
        },
    ),
    Fault(
        what="a sum over a batch is divided by the batch's realised size",
        caught={
            "batch-by-its-size": (DEEP + "test_a_step_is_the_noisy_sum_over_the_expected_size",)
        },
    ),
    Fault(
        what="records of several blocks share their coins",
        caught={
            "coins-anew-in-each-block": (
                "tests/programs/test_records_on_disk.py::"
                "test_no_other_block_or_window_changes_the_batches",
            ),
        },
    ),
    Fault(
        what="the sum is clipped in place of each record's part",
        caught={"clip-after-the-sum": ("tests/networks/test_gradients.py::test_against_a_loop",)},
    ),
    Fault(
        what="a norm cancels that is not computed of what is added",
        caught={"a-norm-that-cancels": (CLIPPED + "[tiny]",)},
    ),
    Fault(
        what="the norm of a long gradient is rounded in the gradient's own type",
        caught={
            "norms-in-single-precision": (CLIPPED + "[one_million]",),
            "no-margin-for-rounding": (
                "tests/conformance/test_clipped_is_added.py::"
                "test_a_contribution_is_never_longer_than_its_bound",
            ),
        },
    ),
    Fault(
        what="a network that mixes records behind dropout counts as one that draws by itself",
        caught={
            "dropout-hides-what-mixes": (
                "tests/programs/test_programs.py::"
                "test_a_network_that_mixes_records_behind_dropout_is_refused",
            ),
        },
    ),
    Fault(
        what="a direction of the neighbours is dropped",
        caught={
            "direction-dropped": (STICK + "test_larger_direction_counts_whichever_comes_first",),
            "direction-of-unseen-coins-dropped": (
                "tests/privacy/test_seen_coins.py::"
                "test_the_worst_case_is_of_the_direction_that_costs_most",
            ),
        },
    ),
    Fault(
        what="γ, with which an estimate may fail, does not come out of δ",
        caught={
            "gamma-not-counted": ("tests/privacy/test_conversions.py::test_split_delta_adds_up",),
            "gamma-counted-once": (STICK + "test_delta_has_what_the_estimates_take",),
        },
    ),
    Fault(
        what="the ε of every group is that of everybody, or has more chances to fail than γ",
        caught={
            "group-of-everybody": (GROUPS + "test_the_bound_is_the_formula",),
            "gamma-of-one-level": (GROUPS + "test_the_bound_is_the_formula",),
            "gamma-of-one-share": (
                GROUPS + "test_epsilon_is_the_smallest_that_the_formula_allows",
            ),
        },
    ),
    Fault(
        what="a record is held out by its row number, which others decide",
        caught={
            "split-by-row-number": (
                "tests/test_neighbouring_tables.py::test_a_split_by_coins_moves_nobody_else",
            ),
            "split-by-a-seed-not-said": (
                "tests/test_neighbouring_tables.py::"
                "test_a_seed_makes_an_experiment_that_is_not_saved",
            ),
        },
    ),
    Fault(
        what="exact measurements of the rows are called public",
        caught={
            "measured-constants-called-public": (
                "tests/datasets/test_tables.py::test_features_targets_and_notes",
            ),
            "measured-constants-assumed-public": (
                "tests/sklearn/test_sklearn.py::test_exact_constants_need_consent_and_are_named",
            ),
        },
    ),
    Fault(
        what="preprocessing bounds of another table are called covered by this ε",
        caught={
            "constants-of-others-called-bought": (
                ORIGINS + "test_constants_of_another_table_are_not_bought_here",
            ),
            "constants-of-any-charge-called-bought": (
                ORIGINS + "test_constants_of_another_table_are_not_bought_here",
            ),
        },
    ),
    Fault(
        what="a key is reused at another price: two noises that differ by a known factor",
        caught={
            "key-reused-at-another-price": (INTENT,),
            "key-of-no-price": (INTENT,),
            "key-without-its-price": (
                KEYS + "test_another_price_work_or_step_has_another_key",
                BOUGHT + "test_one_secret_at_two_prices_or_on_two_ledgers_has_noise_that_does_not_"
                "cancel",
            ),
        },
    ),
    Fault(
        what="a key is reused with another ledger, or for another unit",
        caught={
            "key-of-any-ledger": (KEYS + "test_another_ledger_or_unit_has_another_key",),
            "key-of-any-unit": (KEYS + "test_another_ledger_or_unit_has_another_key",),
        },
    ),
    Fault(
        what="a key stands in the ledger, or outlives what it was for: release and key together "
        "give back what is without noise",
        caught={
            "key-in-the-ledger": (
                LEDGER + "test_a_step_is_charged_once_from_one_secret_at_one_price",
            ),
            "key-kept-after-the-output": (
                "tests/synthesis/test_commands.py::"
                "test_without_a_schema_constants_are_bought_under_the_same_epsilon",
            ),
        },
    ),
    Fault(
        what="a draw comes before its charge",
        caught={
            "charge-after-the-draw": (
                BOUGHT + "test_the_ledger_has_all_of_it_before_anything_is_drawn",
            ),
            "ledger-after-the-draw": (
                RELEASES + "test_a_ledger_that_cannot_be_written_draws_nothing",
            ),
            "ledger-after-the-solution": (ROUTES + "test_it_is_charged_before_it_is_drawn",),
            "ledger-after-the-step": (DEEP + "test_the_budget_refuses_before_anything_is_charged",),
            "ledger-after-the-estimator": (
                "tests/sklearn/test_sklearn_ledger.py::"
                "test_the_file_has_each_charge_before_its_noise_is_drawn",
            ),
        },
    ),
    Fault(
        what="a budget is checked outside the lock under which it is charged",
        caught={
            "budget-outside-the-lock": (LEDGER + "test_nobody_charges_between_check_and_charge",),
            "budget-of-draws-outside-the-lock": (
                RELEASES + "test_nobody_charges_between_check_and_charge",
            ),
            "budget-of-steps-outside-the-lock": (
                LEDGER + "test_nobody_charges_between_check_and_charge[steps]",
            ),
            "reservation-outside-the-lock": (
                LEDGER + "test_nobody_charges_between_check_and_charge[a reservation]",
            ),
        },
    ),
    Fault(
        what="what a work reserved is spent by others too",
        caught={
            "reservation-that-does-not-count": (
                LEDGER + "test_what_a_work_reserves_counts_until_it_ends_and_then_what_it_charged",
            ),
        },
    ),
    Fault(
        what="a ledger that was cut, or is an old copy, is taken for the whole",
        caught={
            "ledger-that-was-cut": (
                LEDGER + "test_a_file_that_was_cut_or_is_an_old_copy_is_refused",
            ),
        },
    ),
    Fault(
        what="noise in single precision: sums and draws betray their low bits",
        caught={
            "float32-noise": (SECURE + "test_a_sum_is_rounded_and_then_moved_by_whole_numbers",),
            "float32-draws": (SECURE + "test_draws_have_all_bits_of_their_normals",),
        },
    ),
    Fault(
        what="draws whose place on the lattice float64 alone decides",
        caught={
            "float64-settles-all": (
                "tests/noise/test_exact_rounding.py::test_a_draw_in_the_tail_has_no_end",
            ),
        },
    ),
    Fault(
        what="a lattice too fine for the arithmetic of the draws",
        caught={"lattice-too-fine": (SECURE + "test_posteriors_have_their_own_lattice",)},
    ),
    Fault(
        what="reference records are among the training rows",
        caught={
            "panel-in-the-training-rows": (DEEP + "test_bad_input_names_the_argument",),
            "heldout-in-the-training-rows": (
                "tests/bayesian/neighbours/test_coupled.py::test_heldout_records_are_none_of_the_data",
            ),
        },
    ),
    Fault(
        what="ε of one of two releases",
        caught={
            "one-of-two-releases": (LEDGER + "test_equal_charges_count_each",),
            "one-of-two-draws": (RELEASES + "test_a_second_release_costs_the_sum_per_record",),
        },
    ),
    Fault(
        what="a pair of distributions that does not dominate those of all neighbours",
        caught={
            "pair-that-is-only-gaussian": (
                "tests/privacy/test_perturbed_price.py::"
                "test_the_profile_is_that_of_the_largest_loss",
            ),
            "pair-of-the-mean": (WORST + "test_privacy_loss_of_one_step_against_its_closed_form",),
            "pair-that-encloses-less": (
                "tests/bayesian/optimum/test_route.py::"
                "test_enclosing_pairs_cost_more_than_anything_within_the_errors",
            ),
        },
    ),
    Fault(
        what="the range of the reference records' costs in place of any record's",
        caught={
            "range-of-the-panel": (
                "tests/bayesian/accounting/test_perturbed_records.py::"
                "test_the_range_is_that_of_any_record_and_not_of_those_given",
            ),
            "largest-of-the-panel": (
                STICK + "test_the_range_is_that_of_any_record_and_not_of_the_panel",
            ),
        },
    ),
    Fault(
        what="weights of records are not what bounds their scores, or are left out of a sum",
        caught={
            "weights-of-features-alone": (WEIGHTED + "test_no_score_is_longer_than_its_bound",),
            "weights-left-out-of-integrals-done-anew": (
                WEIGHTED + "test_series_integrals_done_anew_and_searches_agree",
            ),
        },
    ),
    Fault(
        what="the covariances' part of how far neighbours reach is left out",
        caught={
            "covariance-out-of-reach": (
                GUARANTEES + "test_the_reach_of_neighbours_is_that_of_the_farthest",
            ),
        },
        hole="Of draws with the guide's own covariance no range over all records is known, and "
        "none is claimed: the part of the covariance comes with the bound.",
    ),
    Fault(
        what="a module's records are in the second place",
        caught={
            "records-in-the-second-place": (
                PREFLIGHT + "test_records_in_the_second_place_are_refused",
            ),
        },
    ),
    Fault(
        what="gradients by torch.vmap are believed, and are not those of single records",
        caught={
            "gradients-never-compared": (
                PREFLIGHT + "test_gradients_that_differ_from_autograds_are_not_used",
            ),
        },
    ),
    Fault(
        what="a forward pass changes weights, as Embedding(max_norm=…) does",
        caught={
            "embedding-with-max-norm": (
                DEEP + "test_a_module_that_rewrites_its_weights_is_refused",
            ),
            "embedding-with-max-norm-later": (
                DEEP + "test_a_weight_that_changes_in_a_later_pass_ends_the_run",
            ),
        },
    ),
    Fault(
        what="weights of another x than the one that is summed",
        caught={
            "weights-of-the-wrong-x": (
                "tests/regression/test_perturbed_objective.py::test_weights_bound_any_record",
            ),
            "weights-without-the-ones": (
                SCORES + "test_no_record_adds_more_than_the_bound_and_some_add_all_of_it",
            ),
            "weights-of-another-round": (
                SCORES + "test_no_record_adds_more_than_the_bound_in_any_round",
            ),
            "sandwich-for-nothing": (
                SCORES + "test_no_record_adds_more_than_the_bound_and_some_add_all_of_it",
            ),
        },
    ),
    Fault(
        what="N by len(data)",
        caught={
            "size-by-the-rows": (
                ROUTES + "test_settings_follow_from_the_noisy_number_of_rows_alone",
            ),
            "network-size-by-the-rows": (
                PREFLIGHT + "test_the_number_of_records_has_no_part_in_a_step",
            ),
        },
    ),
    Fault(
        what="a guide starts at rows of the records",
        caught={
            "default-arguments-go-unsearched": (
                REACH + "test_a_start_out_of_the_records_is_refused_by_its_way",
            ),
            "a-copy-of-the-records-counts-as-public": (
                REACH + "test_a_start_out_of_the_records_is_refused_by_its_way",
            ),
            "a-start-goes-uncompared": (
                REACH + "test_a_start_out_of_the_records_is_refused_by_its_way",
            ),
            "a-start-follows-from-the-records": (
                REACH + "test_a_start_that_follows_from_records_is_refused",
            ),
        },
    ),
    Fault(
        what="a guide's second half reads the records without noise",
        caught={
            "a-second-half-reads-the-records": (
                REACH + "test_a_guide_that_reads_records_later_is_refused",
            ),
        },
    ),
    Fault(
        what="an audit by one run takes δ for 0",
        caught={
            "delta-left-out-of-guesses": (
                "tests/audits/test_audits.py::test_the_chance_of_right_guesses_is_the_papers",
            ),
        },
    ),
    Fault(
        what="what the owner did to the rows before a call goes unsaid",
        caught={
            "features-of-arrays-go-unsaid": (
                FACTS + "test_public_constants_that_are_declared_take_its_place",
            ),
            "constants-of-a-loader-called-public": (
                FACTS + "test_loaders_say_that_their_constants_were_read_from_the_table",
            ),
            "a-step-fitted-before-goes-unseen": (
                FACTS + "test_a_pipeline_that_learns_from_the_rows_is_seen",
            ),
        },
    ),
    Fault(
        what="a loop of somebody else is taken to sample as the price assumes",
        caught={
            "any-loader-samples-by-poisson": (
                "tests/networks/test_opacus.py::"
                "test_a_loader_that_does_not_sample_by_poisson_is_refused",
            ),
            "a-loop-s-sampling-goes-unsaid": (
                FACTS + "test_an_accountant_says_what_it_does_not_see",
            ),
        },
    ),
    Fault(
        what="calls without a ledger do not add up",
        caught={
            "an-account-for-every-object": (ACCOUNT + "test_rows_are_known_in_every_form",),
            "a-sum-of-the-last-call-alone": (ACCOUNT + "test_rows_are_known_in_every_form",),
        },
    ),
    Fault(
        what="one table has two accounts: by another path, another format or a row more",
        caught={
            "a-glob-opens-an-account": (
                TABLE + "test_a_file_a_glob_a_folder_and_a_link_have_one_account",
            ),
            "a-copy-opens-an-account": (TABLE + "test_one_account_is_opened_by_processes_at_once",),
            "a-row-more-opens-an-account": (TABLE + "test_a_row_more_opens_no_account",),
        },
    ),
    Fault(
        what="a temperature that another fit read from the records passes for the owner's",
        caught={
            "a-temperature-read-by-another-fit-passes": (
                ACCOUNT + "test_a_temperature_from_the_records_is_one_for_later_fits_too",
            ),
        },
    ),
    Fault(
        what="a target found by trying passes for the first",
        caught={
            "refused-targets-leave-no-trace": (ACCOUNT + "test_a_target_found_by_trying_says_so",),
        },
    ),
    Fault(
        what="copies of records pass for records of a population",
        caught={
            "copies-pass-for-records": (
                ACCOUNT + "test_the_owner_is_told_of_records_that_are_copies",
            ),
        },
    ),
)
"""Faults chosen together with the tests that notice them."""

FAULTS = SEEN + UNSEEN
