"""Which messages tell the user what to do, and which tests elsewhere do it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERBS = (
    "ask bind bound call choose chmod clip convert create declare delete draw give go hand hide "
    "hold keep leave let list make mark move number put raise read rename replace rescale restore "
    "run sample save say set sum take try turn use wait write"
)
RULE = re.compile(
    rf"(?:^|[:;.,?(] |\(|\b(?:or|and|then|first|so) )"
    rf"(?P<remedy>(?:(?:{VERBS.replace(' ', '|')}) (?!to )[\w'{{.-]|"
    r"`bdpvi |count each|start it|lower the|release draws)(?:[^:;.]|\.(?! |$))*)",
    re.IGNORECASE,
)
"""A remedy: a clause that begins with an imperative."""
PLAIN = re.compile(
    r"fit again|give (one|unit)$|choose another( out)?(,|$)|leave (it|seed) out|set to|"
    r"keep .*secret|write here",
    re.I,
)
"""The same call with an argument less or another name, as all other tests make it; no error."""


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings and no help of an option."""
    out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            out |= set(map(id, node.values))
        elif isinstance(node, ast.keyword) and node.arg == "help":
            out |= set(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if id(node) not in out and isinstance(node, ast.JoinedStr | ast.Constant):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            yield "".join(
                str(getattr(one, "value", "{}") if isinstance(one, ast.Constant) else "{}")
                for one in parts
            )


def remedies() -> set[str]:
    """Return "place: remedy" for every message that has one; bench/ is no door to rows."""
    found, folders = set(), ("bdpvi", "datasets", "guides")
    for file in (one for folder in folders for one in (ROOT / folder).rglob("*.py")):
        place = file.relative_to(ROOT).with_suffix("").as_posix().removeprefix("bdpvi/")
        if place.startswith("bench/"):
            continue
        for text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                " " in text.strip()
                and (one := RULE.search(text))
                and not PLAIN.match(one["remedy"])
            ):
                found.add(f"{place}: {one['remedy']}")
    return found


ELSEWHERE: dict[str, tuple[str, ...]] = {
    "commands/test_table_command.py::test_an_excel_export_needs_one_command_and_one_edit": (
        'commands/table: say in "source"',
        "releases/table_file: write what is known",
    ),
    "commands/test_table_command.py::test_lines_above_the_names_and_a_second_sheet_are_named": (
        "datasets/sheets: choose one",
        "tables/looking: delete the lines above",
    ),
    "commands/test_table_command.py::test_it_finds_how_a_file_is_written": (
        "commands/table: declare it, or --drop it",
        "datasets/lines: `bdpvi table` finds it",
        "datasets/looks: `bdpvi table` finds it",
    ),
    "commands/test_table_command.py::test_what_a_file_says_is_refused_with_a_remedy": (
        "commands/table: give --table FILE",
        "releases/table_file: declare account",
        "releases/table_file: declare one of them",
        "releases/table_file: give another place",
        "releases/table_file: read it, and say --table",
    ),
    "commands/test_check.py::test_every_problem_of_an_export_is_named_and_its_options_solve_them": (
        "tables/looking: declare {}",
    ),
    "tables/test_accounts.py::test_commands_join_and_refuse": ("privacy/accounts: Give ledger=",),
    "tables/test_accounts.py::test_a_damaged_identity_is_refused": (
        "privacy/accounts: Put it back",
    ),
    "programs/test_dpvi_route.py::test_targets_are_for_observing_alone": (
        "models/traces: sample it",
        "models/traces: write model(x, y=None)",
    ),
    "programs/test_private_svi.py::test_a_site_that_is_gone_is_named": (
        "programs/program: let every run",
    ),
    "programs/test_recording.py::"
    "test_what_a_record_would_freeze_is_refused_and_trained_without_one": (
        "programs/recording: use {}()",
    ),
    "programs/test_pyro_features.py::test_indices_in_an_array_are_refused_with_the_remedy": (
        "programs/failures: hand indices over",
    ),
    "bayesian/test_one_ledger.py::test_a_cut_or_an_old_ledger_is_noticed": (
        "_ground/chain: Restore the newest",
        "releases/receipts: `bdpvi ledger repair",
        "privacy/ledger: `bdpvi ledger repair",
    ),
    "privacy/test_ledger.py::test_a_missing_file_and_anothers_are_refused": (
        "_ground/chain: restore the newest",
        "privacy/ledger: Restore it",
    ),
    "bayesian/accounting/test_table.py::test_lost_losses_are_refused_until_they_are_put_back": (
        "bayesian/accounting/kept: Put it back",
        "bayesian/accounting/kept: Put the newest",
    ),
    "commands/test_cli.py::test_budget_and_ledger": ("privacy/repair: give all releases",),
    "_ground/test_checkpoint.py::"
    "test_interrupted_command_goes_on_when_given_again_and_leaves_nothing": (
        "_ground/checkpoint: go on with that",
    ),
    "bayesian/accounting/test_training_path.py::test_the_costs_of_a_path_stay_marked": (
        "bayesian/accounting/accountant: ask for the worst case",
    ),
    "bayesian/accounting/test_bayesian.py::test_a_run_without_a_panel_has_the_worst_case_alone": (
        "bayesian/accounting/charges: ask for the worst case",
    ),
    "privacy/test_ledger.py::test_a_step_is_charged_once_from_one_secret_at_one_price": (
        "releases/transaction: choose another folder",
    ),
    "tables/test_routes.py::test_a_bayesian_guarantee_takes_draws_from_the_posterior": (
        "tables/routes: leave route",
    ),
    "privacy/test_ledger.py::test_a_copy_charges_files_only": ("privacy/ledger: keep it",),
    "synthesis/test_blocks_of_rows.py::test_what_needs_rows_in_memory_is_left_out": (
        "commands/quality: leave --groups out",
    ),
    "synthesis/test_commands.py::test_a_table_is_shared_and_more_rows_made": (
        "datasets/constants: write public bounds",
    ),
    "datasets/test_tables.py::test_other_separators": ("datasets/lines: try separator",),
    "tables/test_names_and_levels.py::test_a_layer_with_a_computed_weight_is_named": (
        "networks/refusals: use torch.nn.utils.parametrizations",
    ),
    "tables/test_names_and_levels.py::test_a_column_called_row_does_not_switch_persons_off": (
        "releases/persons: rename the column of persons",
    ),
    "federated/test_federation.py::test_a_restarted_server_loses_and_doubles_no_charge": (
        "federated/federated: Make a new Federation",
        "federated/federated: draw next_round",
        "federated/federated: take next_round",
    ),
    "networks/test_opacus.py::test_a_batch_in_parts_is_one_step": (
        "networks/opacus: use opacus",
        "networks/opacus: call watch()",
        "networks/opacus: take copy",
    ),
    "networks/test_opacus.py::test_a_loader_that_does_not_sample_by_poisson_is_refused": (
        "networks/opacus: Leave poisson_sampling",
    ),
    "conformance/test_rehearsal.py::"
    "test_partitions_that_are_drawn_anew_are_refused_before_a_charge": (
        "datasets/records: give what draws its rows a fixed seed",
    ),
    "conformance/test_rehearsal.py::test_what_a_refused_rehearsal_says_works": (
        "releases/transaction: leave the column out",
    ),
    "conformance/test_rehearsed.py::"
    "test_a_guide_that_makes_parameters_in_its_first_run_is_refused": (
        "programs/training: make it in __init__",
    ),
    "conformance/test_rehearsed.py::"
    "test_a_network_s_optimiser_that_fails_is_refused_before_a_charge": (
        "networks/refusals: use one of torch.optim",
    ),
    "models/test_within_bounds.py::test_without_a_file_the_row_is_refused_by_its_number": (
        "models/predictions: leave out rows whose exposure",
    ),
    "networks/test_opacus.py::test_a_state_goes_on": ("networks/opacus: go on with the one",),
    "networks/test_preflight.py::test_a_module_that_needs_other_values_has_an_example": (
        "networks/trial: give some made-up",
    ),
    "federated/test_flower.py::test_it_learns_and_releases_weights_only": (
        "federated/flower: Leave counters out",
        "federated/flower: call configure_train",
    ),
    "programs/test_dpvi_route.py::test_a_checkpoint_is_of_one_model_and_guide": (
        "programs/training: go on with that",
    ),
    "_ground/test_checkpoint.py::test_a_damaged_part_is_refused": (
        "_ground/checkpoint: delete it",
    ),
    "programs/test_programs.py::test_losses_that_are_no_sum_over_records_are_refused": (
        "programs/reading: use one of",
        "programs/reading: use 1",
    ),
    "programs/test_programs.py::test_the_plate_is_asked_for_where_several_could_be_it": (
        "programs/reading: say which",
    ),
    "programs/test_programs.py::test_moments_are_the_guides": ("programs/moments: use bdpvi",),
    "programs/test_latents_nobody_sums_out.py::test_the_remedy_trains_it": (
        "models/misfits: mark the model",
    ),
    "guides/test_checks.py::test_predictive_is_tried_in_the_default_type": (
        "guides/checks: make them the same",
    ),
    "guides/test_converted.py::test_trained_parameters_are_the_start_if_they_are_public": (
        "guides/converted: Make a new one",
    ),
    "models/test_regressions.py::test_releases_are_kept_whole_and_say_what_weights_are": (
        "models/predictions: use predict_mean",
        "models/predictions: use predict_proba",
    ),
    "commands/test_cli.py::test_a_weight_norm_takes_the_clips_place": (
        "commands/release: leave one of the two out",
    ),
    "models/test_own.py::test_a_family_that_is_none_is_refused": (
        "models/own: let it follow",
        "models/own: write it without overflow",
    ),
}
"""Tests that carry remedies out, by the beginnings of these."""
