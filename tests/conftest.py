"""Which tests are left out of the quick tier and of `make test`, and why."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

# No deadline: a machine with other work stalls for seconds. The same examples in every run, so that no change fails by
# an example of chance; `make stable` takes others, by a seed that it prints
for name, derandomize in (("gate", True), ("chance", False)):
    hypothesis.settings.register_profile(
        name, deadline=None, derandomize=derandomize, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("gate")

collect_ignore = ["pytorch", "with_pandas"]
"""Run by ``make test-torch`` and ``make test-data``, where PyTorch and pandas are."""

WHOLE = {
    "cuda/test_arrays_on_harness.py::test_an_op_runs_where_its_arrays_are",
    "cuda/test_gpus_on_harness.py",
    "cuda/test_harness.py",
    "cuda/test_layers_on_harness.py",
    "lib/test_digits_page.py",
    "lib/test_examples_in_c.py::test_the_script_makes_a_model_of_that_form",
    "nn/test_griffin.py::test_its_recipe_learns_digits",
    "package/test_benchmarks.py",
    "package/test_cli.py",
    "package/test_contributing.py::test_an_op_and_a_layer_are_added",
    "package/test_lru_figures.py",
    "package/test_notebooks.py",
    "package/test_pictures.py",
    "package/test_plots.py",
    "package/test_readme.py::test_a_layer_and_a_task_of_ones_own",
    "package/test_readme.py::test_own_data_from_files_to_forecasts_and_runs",
    "package/test_readme.py::test_the_guide_runs_from_top_to_bottom",
    "package/test_theory.py::test_every_picture_is_drawn",
    "package/test_theory.py::test_the_command_draws_what_it_is_asked_for",
    "package/test_types.py",
    "training/test_estimators.py::test_the_checks_of_scikit_learn",
    "training/test_launchers.py",
    "training/test_parallel.py",
    "training/test_split.py::test_a_process_of_mpi_that_fails_does_not_hang_the_others",
    "training/test_split.py::test_processes_of_mpi_equal_one",
    "training/test_split.py::test_processes_of_mpi_run_the_documented_examples",
    "training/test_sweep.py",
    "training/test_training_memory.py::test_a_step_takes_no_more_than_it_may",  # sanitizers hold freed memory back
}
"""These drive whole programs (commands, notebooks, benchmarks, pictures, several processes) or train for long. The C
code that they reach is that which tests of ops, layers, tasks and the training loop reach, so the sanitizers do not run
them again. `make test-rest` runs them, `make test` does not."""

SLOW = {
    "fuzz/test_file_formats.py::test_a_few_hundred_files_of_every_format",
    "lib/test_examples_in_c.py::test_digits_are_those_of_the_python_stream",
    "lib/test_examples_in_c.py::test_the_script_makes_a_model_of_that_form",
    "lib/test_lib.py::test_a_model_that_was_saved_here_on_aarch64",
    "lib/test_lib.py::test_cmake_finds_the_package",
    "lib/test_lib.py::test_other_instruction_sets",
    "lib/test_lib.py::test_whichever_allocation_fails_there_is_no_memory_and_none_is_lost",
    "models/test_models.py::test_gradient_of_the_whole_model",
    "models/test_regressor.py::test_losses_equal_a_loop_and_gradients_central_differences",
    "package/test_checks.py::test_no_kernel_leaves_the_extents_of_the_list",
    "package/test_checks.py::test_whichever_allocation_fails_there_is_a_memory_error_and_all_is_as_before",
    "nn/test_griffin.py::test_its_recipe_learns_digits",
    "nn/test_ladder.py::test_theorem_3_1_glorot_matrices_have_the_spectrum_of_the_disc",
    "nn/test_rnn.py::test_glorot_fills_the_disc_and_orthogonal_the_circle",
    "ops/test_cases.py::test_backward_equals_central_differences[Bedouin",
    "ops/test_cases.py::test_backward_equals_central_differences[FPMamba",
    "ops/test_scan.py::test_long_sequences_on_the_unit_circle",
    "ops/test_scan.py::test_the_environment_picks_the_instruction_set",
    "ops/test_window.py::test_float32_at_unit_modulus_errs_no_more_after_a_million_steps",
    "package/test_fuzz.py::test_the_first_calls_have_no_fault",
    "tasks/test_generated.py::test_same_examples_for_any_number_of_threads",
    "tasks/test_listops.py::test_same_expressions_for_any_number_of_threads_and_seeds_differ",
    "tasks/test_listops.py::test_settings_that_cannot_yield_enough",
    "tasks/test_pathfinder.py::test_images_as_the_reference_draws_them",
    "tasks/test_pathfinder.py::test_labels_by_the_image_alone",
    "tasks/test_pathfinder.py::test_labels_by_tracing_the_contours",
    "tasks/test_pathfinder.py::test_same_bytes_for_any_number_of_threads_and_instruction_set",
    "tasks/test_pathfinder.py::test_statistics_of_the_original",
    "tasks/test_delayed_copy.py::test_a_run_learns_it_and_is_drawn",
    "tasks/test_download.py::test_an_incomplete_folder_of_a_killed_process_is_not_used",
    "tasks/test_pathfinder.py::test_where_contours_start",
    "tasks/test_prepared.py::test_incomplete_data_of_a_killed_process_are_not_used",
    "tasks/test_prepared.py::test_a_second_process_waits_for_the_first",
    "tasks/test_released.py::test_incomplete_data_of_a_killed_process_are_prepared_again",
    "tasks/test_word_problem.py::test_the_largest_groups",
    "training/test_estimators.py",
    "training/test_io_errors.py",
    "training/test_regression_run.py",
    "training/test_tensorboard.py::test_a_disk_that_fills_up_warns",
    "training/test_training.py::test_a_full_disk_stops_with_one_line_and_keeps_the_checkpoint",
    "training/test_training.py::test_a_second_ctrl_c_aborts",
    "training/test_training.py::test_a_real_model_killed_resumes_to_the_same_bytes",
    "training/test_training.py::test_ctrl_c_saves_and_resumes",
    "training/test_training.py::test_killed_at_any_moment_a_run_resumes_to_the_same_bytes",
    "training/test_training.py::test_same_bits_for_any_number_of_threads",
}
"""These take seconds each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests whose ids begin as what is listed."""
    here = Path(__file__).parent
    for item in items:
        if item.path.stem.endswith("_on_harness"):  # the CUDA kernels are compiled for it first
            item.add_marker("slow")
        name = f"{item.path.relative_to(here).as_posix()}::{item.name}"
        for marker, listed in (("whole", WHOLE), ("slow", SLOW)):
            if name.startswith(tuple(listed)):
                item.add_marker(marker)
