/* Names that files of the library share, with a prefix: in a program that is linked with the archive, a function
 * `build` or `choose` of its own is another. The library's Makefile includes this file in front of each of its files,
 * which need not know of it; tests/lib/test_lib.py says which name is missing.
 */
#ifndef ROT_NAMES_H
#define ROT_NAMES_H

/* memory.c */
#define arena_free rot_arena_free
#define arena_take rot_arena_take
#define failed     rot_failed

/* json.c */
#define json_is     rot_json_is
#define json_member rot_json_member
#define json_read   rot_json_read

/* sha256.c */
#define sha256_add   rot_sha256_add
#define sha256_end   rot_sha256_end
#define sha256_start rot_sha256_start

/* file.c */
#define file_find     rot_file_find
#define file_read     rot_file_read
#define file_sort     rot_file_sort
#define header_length rot_header_length

/* build.c */
#define choice_of    rot_choice_of
#define computed     rot_computed
#define dense_of     rot_dense_of
#define emit         rot_emit
#define emit_dense   rot_emit_dense
#define emit_gated   rot_emit_gated
#define flag_of      rot_flag_of
#define from_row     rot_from_row
#define good         rot_good
#define integer_of   rot_integer_of
#define is_null      rot_is_null
#define keep_steps   rot_keep_steps
#define left_out     rot_left_out
#define number_of    rot_number_of
#define packed_of    rot_packed_of
#define spare        rot_spare
#define stored       rot_stored
#define stored_exact rot_stored_exact
#define table_of     rot_table_of
#define take_rows    rot_take_rows
#define take_state   rot_take_state
#define unsupported  rot_unsupported
#define weights_of   rot_weights_of
#define widen        rot_widen
#define window_of    rot_window_of

/* lines.c */
#define alike             rot_alike
#define build             rot_build
#define copied            rot_copied
#define doubles           rot_doubles
#define emit_columns      rot_emit_columns
#define expect            rot_expect
#define fixed             rot_fixed
#define give_back         rot_give_back
#define halves_for        rot_halves_for
#define integers_of       rot_integers_of
#define is                rot_is
#define is_matrix_or_none rot_is_matrix_or_none
#define line_count        rot_line_count
#define line_name         rot_line_name
#define make              rot_make
#define make_adjacent     rot_make_adjacent
#define make_copy         rot_make_copy
#define make_like         rot_make_like
#define make_matrix       rot_make_matrix
#define numbers_of        rot_numbers_of
#define packed_input      rot_packed_input
#define rows_for          rot_rows_for
#define state_for         rot_state_for
#define steps             rot_steps
#define transposed        rot_transposed

/* recurrences.c */
#define read_attention       rot_read_attention
#define read_bank            rot_read_bank
#define read_conv            rot_read_conv
#define read_delta           rot_read_delta
#define read_dplr_bank       rot_read_dplr_bank
#define read_elman           rot_read_elman
#define read_gru             rot_read_gru
#define read_history         rot_read_history
#define read_hold            rot_read_hold
#define read_lstm            rot_read_lstm
#define read_matrix_memory   rot_read_matrix_memory
#define read_oscillator_scan rot_read_oscillator_scan
#define read_permuted_scan   rot_read_permuted_scan
#define read_products        rot_read_products
#define read_rotary          rot_read_rotary
#define read_scalar_memory   rot_read_scalar_memory
#define read_scan            rot_read_scan
#define read_selective       rot_read_selective
#define read_ssd             rot_read_ssd
#define read_system          rot_read_system
#define read_trapezoid       rot_read_trapezoid
#define read_turn            rot_read_turn
#define read_turning_scan    rot_read_turning_scan
#define read_unit_scan       rot_read_unit_scan
#define read_wrope           rot_read_wrope

/* fixed_points.c */
#define read_fixed_point        rot_read_fixed_point
#define read_matrix_fixed_point rot_read_matrix_fixed_point

/* choose.c */
#define choose rot_choose

/* rotrnn.c */
#define model_of       rot_model_of
#define stream_push    rot_stream_push
#define stream_refuses rot_stream_refuses

/* gemm_tile.c */
#define gemm_half_row rot_gemm_half_row
#define gemm_product  rot_gemm_product

/* stop.c */
#define stop_calls_by rot_stop_calls_by
#define stop_of_call  rot_stop_of_call

#endif
