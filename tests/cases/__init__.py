"""The table of cases: one list of ops, tested by test_cases.py, and one of layers, also tested by test_layer_rows.py.

A new op or layer adds its rows in a file of its own here, and its lists below. The rows of LARGE are for threads
alone: every parallel loop of csrc stays in one thread below some size, and goes beyond it in some row. ON_DEVICES are
without those that need kernels that a GPU does not have.
"""

from cases import (
    bank,
    bedouin,
    blocks,
    conv,
    delta,
    dplr,
    fixed_point,
    griffin,
    history,
    ladder,
    linear,
    linoss,
    mamba3,
    memory,
    min_gru,
    mixers,
    mlstm,
    ops,
    orthogonal,
    rg_lru,
    rnn,
    selective,
    slstm,
    ssd,
    turn,
    window,
)
from cases.layer_row import LayerRow
from cases.table import Case

ANYWHERE: list[LayerRow] = [
    *bedouin.LAYERS,
    *linear.LINEAR,
    *selective.LAYERS,
    *ssd.LAYERS,
    *mamba3.LAYERS,
    *delta.LAYERS,
    *mlstm.LAYERS,
    *slstm.LAYERS,
    *linear.BOTH_WAYS,
    *rnn.LAYERS,
    *min_gru.LAYERS,
    *rg_lru.LAYERS,
    *linoss.LAYERS,
    *window.WINDOWED_LAYERS,
    *memory.MEMORIES,
    *griffin.LAYERS,
    *history.HISTORIES,
    *ladder.LADDER,
    *dplr.LAYERS,
    *fixed_point.FIXED_POINT,
]
LAYER_ROWS = [*ANYWHERE, *bedouin.ON_CPU]
LAYER_ROWS_LARGE: list[LayerRow] = [
    *linear.LINEAR_LARGE,
    *ladder.LADDER_LARGE,
    *dplr.LAYERS_LARGE,
    *fixed_point.FIXED_POINT_LARGE,
    *selective.LAYERS_LARGE,
    *ssd.LAYERS_LARGE,
    *mamba3.LAYERS_LARGE,
    *delta.LAYERS_LARGE,
    *mlstm.LAYERS_LARGE,
    *slstm.LAYERS_LARGE,
]

ON_DEVICES: list[Case] = [
    *ops.OPS,
    *orthogonal.OPS,
    *rnn.OPS,
    *mixers.OPS,
    *selective.OPS,
    *conv.OPS,
    *ssd.OPS,
    *mamba3.OPS,
    *turn.OPS,
    *delta.OPS,
    *mlstm.OPS,
    *slstm.OPS,
    *linoss.OPS,
    *window.WINDOWS,
    *memory.HISTORIES,
    *history.READS,
    *bank.OPS,
    *dplr.BANK,
    *blocks.FUSED,
    *(row.case() for row in ANYWHERE),
]
CASES = [*ON_DEVICES, *(row.case() for row in bedouin.ON_CPU)]
LARGE: list[Case] = [
    *ops.OPS_LARGE,
    *orthogonal.OPS_LARGE,
    *rnn.OPS_LARGE,
    *mixers.OPS_LARGE,
    *selective.OPS_LARGE,
    *conv.OPS_LARGE,
    *ssd.OPS_LARGE,
    *mamba3.OPS_LARGE,
    *turn.OPS_LARGE,
    *delta.OPS_LARGE,
    *mlstm.OPS_LARGE,
    *slstm.OPS_LARGE,
    *linoss.OPS_LARGE,
    *window.WINDOWS_LARGE,
    *history.READS_LARGE,
    *bank.OPS_LARGE,
    *dplr.BANK_LARGE,
    *blocks.FUSED_LARGE,
    *(row.case() for row in LAYER_ROWS_LARGE),
]
