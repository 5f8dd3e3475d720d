"""Which tests run where, and doctests of ``guides/`` and ``datasets/`` as ``bdpvi`` has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NEEDS = {
    "flwr": "*/flower*.py",
    "numba": "bdpvi/bayesian/neighbours/*compiled*.py",
    "opacus": "bdpvi/networks/opacus.py",
}
"""Doctests of what needs an extra cannot be collected without it; tests say so by skipping."""
WHOLE = (
    "_ground/test_checkpoint.py",
    "_ground/test_interrupted.py",
    "_ground/test_readers.py",
    "bench",
    "datasets/test_mnist.py",
    "bench/test_dpvi.py",
    "federated/test_example_federated.py",
    "networks/test_example_mnist.py",
    "federated/test_federated_benchmark.py",
    "federated/test_federated_vi.py",
    "federated/test_flower.py",
    "networks/test_network_benchmarks.py",
    "networks/test_static_costs.py",
    "models/test_regressions.py",
    "bayesian/optimum/test_stream.py",
    "bayesian/optimum/test_wide.py",
    "bayesian/neighbours/test_released_covariance.py",
    "programs/test_dpvi_route.py",
    "regression/test_intervals.py",
    "tables/test_numbers.py",
    "programs/test_trained.py",
    "bayesian/test_one_account.py",
    "studies",
    "synthesis/test_combine.py",
    "synthesis/test_quality.py",
    "test_devices.py",
    "bayesian/test_distributed.py",
    "test_documentation.py",
    "test_examples.py",
    "test_generative_examples.py",
    "test_outputs.py",
    "sklearn/test_sklearn_regressors.py",
)
"""What make test-all has: comparisons, studies, examples, pages, long tests of each room."""
SLOW = (
    "_ground/test_interrupted.py::test_of_several_processes_with_one_out_one_succeeds",
    "_ground/test_log.py::test_verbose_goes_to_standard_error",
    "_ground/test_readers.py::test_cells[compare",
    "audits/test_audits.py::test_a_file_is_audited",
    "bayesian/accounting/test_every_group.py::test_a_smaller_share_has_no_smaller_epsilon",
    "bayesian/accounting/test_every_group.py::test_a_temperature_from_the_records_keeps_epsilon",
    "bayesian/accounting/test_every_group.py::test_the_worst_group_pays_more_in_no_more_samples_than_gamma[a",
    "bayesian/accounting/test_every_group.py::test_the_worst_group_pays_more_in_no_more_samples_than_gamma[smooth",
    "bayesian/accounting/test_hockey_stick.py::test_delta_at_the_epsilon_of_delta_is_within_it",
    "bayesian/accounting/test_table.py::test_two_fits_alike_cost_what_one_costs_twice[False",
    "bayesian/mode/test_fits_in_blocks.py::test_chunks_by_workers_are_equal_to_the_bit",
    "bayesian/mode/test_fits_in_blocks.py::test_workers_fit_the_same_to_the_bit",
    "bayesian/mode/test_modes.py::test_more_records_cost_less_and_more_draws_cost_more",
    "bayesian/mode/test_ranges.py::test_no_record_moves_a_fit_further_than_any_is_said_to[linear-0",
    "bayesian/mode/test_ranges.py::test_no_record_moves_a_fit_further_than_any_is_said_to[linear-12",
    "bayesian/mode/test_ranges.py::test_no_record_moves_a_fit_further_than_any_is_said_to[multinomial-12",
    "bayesian/mode/test_ranges.py::test_no_record_moves_a_fit_further_than_any_is_said_to[negative",
    "bayesian/mode/test_ranges.py::test_no_record_moves_a_fit_further_than_any_is_said_to[poisson-12",
    "bayesian/neighbours/test_released_covariance.py::test_a_public_noise_scale_leaves_the_means_alone_to_tell",
    "bayesian/neighbours/test_released_covariance.py::test_a_ridge_evens_out_what_records_cost",
    "bayesian/neighbours/test_released_covariance.py::test_neighbours_are_compared_as_they_would_be_released[FullRank",
    "bayesian/optimum/test_drawn.py::test_no_record_moves_the_optimum_farther_than_the_bounds[model0-FullRank",
    "bayesian/optimum/test_route.py::test_more_than_fifty_features_are_answered_by_passes_and_searches[FullRank",
    "bayesian/test_one_account.py::test_a_budget_is_for_all_fits",
    "bayesian/test_one_account.py::test_what_a_killed_process_released_counts[True",
    "bayesian/test_releases.py::test_a_temperature_of_typical_records_is_the_smallest",
    "bayesian/test_releases.py::test_calibrated_temperature_is_the_smallest",
    "bench/test_comparison.py::test_calibration_lands_just_below",
    "bench/test_tuning.py::test_settings_are_chosen_by_the_objective[a",
    "commands/test_cli.py::test_a_demonstration_does_without_extras",
    "commands/test_cli.py::test_demo",
    "commands/test_cli.py::test_of_three_releases_to_one_file_two_are_refused_before_they_are_charged",
    "commands/test_fit_workers.py::test_workers_train_the_same_fit",
    "conformance/test_lost_workers.py::test_a_full_disk[private",
    "conformance/test_lost_workers.py::test_a_killed_caller[private-60",
    "conformance/test_lost_workers.py::test_a_killed_worker_of_dask_is_replaced[private-20",
    "conformance/test_odd_records.py::test_no_person_decides_anything[private, bought",
    "datasets/test_exact.py::test_draws_have_the_law[values0-False",
    "federated/test_federated_vi.py::test_without_clip_and_noise_it_is_the_pooled_optimum[FullRank",
    "federated/test_federated_vi.py::test_without_clip_and_noise_it_is_the_pooled_optimum[LowRank",
    "networks/test_deep.py::test_an_audit_never_finds_more_than_is_reported",
    "networks/test_network_ledger.py::test_a_killed_run_has_charged_all_that_it_drew",
    "privacy/test_dominating.py::test_a_thousand_steps_are_within_it[0.005",
    "privacy/test_dominating.py::test_each_plan_is_within_the_charge_at_every_epsilon[0.1-0.01",
    "privacy/test_dominating.py::test_each_plan_is_within_the_charge_at_every_epsilon[1.0-0.2",
    "privacy/test_dominating.py::test_the_charge_follows_from_no_noisy_number",
    "privacy/test_sampled_rows.py::test_many_steps_against_a_convolution[run1",
    "privacy/test_sampled_rows.py::test_no_person_costs_more_than_one_of_equal_rows",
    "privacy/test_sampled_rows.py::test_steps_of_persons_are_within_their_gaussian_mechanism[5",
    "programs/test_dpvi_route.py::test_more_records_and_a_larger_epsilon_are_nearer_to_the_truth",
    "programs/test_private_svi.py::test_a_script_for_svi_becomes_private_by_one_line[clusters",
    "programs/test_records_on_disk.py::test_persons_with_several_rows_are_trained_on_as_in_memory",
    "programs/test_trained.py::test_all_rows_of_a_person_are_under_epsilon[given0",
    "programs/test_trained.py::test_one_command_trains_predicts_and_summarises[multinomial",
    "programs/test_trained.py::test_one_command_trains_predicts_and_summarises[negative",
    "programs/test_trained.py::test_steps_are_within_their_price_for_the_ledger_that_is_charged",
    "regression/test_noisy_scores.py::test_intervals_cover[linear-1500",
    "regression/test_noisy_scores.py::test_intervals_cover[poisson",
    "regression/test_noisy_scores.py::test_nuts_samples_the_model_without_data",
    "regression/test_perturbed_objective.py::test_columns_that_no_record_uses_shrink_nothing",
    "sklearn/test_frames.py::test_every_estimator_takes_a_frame[model3",
    "sklearn/test_persons_and_weights.py::test_every_estimator_takes_persons[model5",
    "sklearn/test_persons_and_weights.py::test_weights_of_three_classes_move_the_model",
    "synthesis/test_blocks_of_rows.py::test_the_command_reads_blocks_by_workers",
    "synthesis/test_blocks_of_rows.py::test_workers_change_nothing_and_see_no_key[1",
    "tables/test_persons_in_blocks.py::test_the_command_protects_persons_of_a_folder",
    "tables/test_spread.py::test_the_command_reads_blocks_by_workers",
    "tables/test_spread.py::test_workers_change_nothing_and_see_no_key[2",
    "tables/test_training_in_blocks.py::test_the_command_trains_on_blocks_and_scores_the_rows",
    "test_devices.py::test_a_comparison_on_a_device_is_the_cpus[bdp-vi-mean-field",
    "test_devices.py::test_the_device_says_what_the_cpu_says[posterior draws",
    "test_devices.py::test_the_device_says_what_the_cpu_says[release, Bayesian",
    "test_devices.py::test_the_device_says_what_the_cpu_says[release, worst case, default",
    "test_documentation.py::test_code_on_pages_runs[docs/explanation/groups.md",
    "test_documentation.py::test_code_on_pages_runs[docs/explanation/optimum-route.md",
    "test_documentation.py::test_code_on_pages_runs[docs/tutorial/messy-file.md",
    "test_examples.py::test_example_prints_its_epsilon_and_draws_its_figure[student_t",
    "test_examples.py::test_public_tables_are_certified_or_say_why_not[abalone",
    "test_examples.py::test_the_cluster_releases_a_model_synthetic_rows_and_a_certificate",
    "test_outputs.py::test_a_screen_ends_no_release[closed",
    "test_remedies.py::test_what_a_refusal_says_works[bayesian/promised: Take guides.Laplace",
)
"""Tests of several seconds beside a quicker one of the same part; names may end early."""
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out, as its package is not installed: {name}" for name in collect_ignore_glob]


def pytest_collect_file(file_path: Path) -> None:
    """Let a file of ``guides/`` or ``datasets/`` be the module of bdpvi, not one of its own."""
    name = ".".join(file_path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if name.split(".")[0] in {"guides", "datasets"}:
        sys.modules[name] = import_module(f"bdpvi.{name}")


def pytest_sessionstart() -> None:
    """Say so if another checkout's ``guides/`` and ``datasets/`` would be tested."""
    for name in ("bdpvi", "bdpvi.guides", "bdpvi.datasets"):
        found = find_spec(name)
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(ROOT):
            raise pytest.UsageError(
                f"{name} is not this checkout's ({found and found.origin}): pip install -e ."
            )


@pytest.hookimpl(tryfirst=True)  # before -m leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole files and folders, and those that are slow."""
    whole, slow = (tuple(f"tests/{one}" for one in names) for names in (WHOLE, SLOW))
    for item in items:
        if item.nodeid.startswith(whole):
            item.add_marker("whole")
        if item.nodeid.startswith(slow):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _own_account() -> Iterator[None]:
    """Begin each test and doctest without what the process spent before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdpvi.privacy.process._accounts", [])
        yield
