"""Public forward and backward functions on top of the C kernels: NumPy arrays in, NumPy arrays out.

Each module lists its public names in its ``__all__``.

Order of arguments: functions of each step alone take x, then the weights, as in torch.nn.functional. Recurrences and
mixers take their coefficients, x (or u) and the initial state, as in ``h_t = a_t h_{t-1} + x_t``. Two families keep the
order of their papers: the selective scans (x, delta, A, B, C), and attention and its relatives (q, k, v). Initial
states are h0, c0, n0, m0, final states hT, cT, nT, mT; a state of several arrays is `state`. A backward function takes
the gradient of the output, then arguments of forward in their order, with results of forward where needed, then by
keyword dhT, the gradient of a final state.
"""

from typing import TYPE_CHECKING

from rotrnn.ops.attention import *  # noqa: F403
from rotrnn.ops.attention import __all__ as _attention
from rotrnn.ops.bank import *  # noqa: F403
from rotrnn.ops.bank import __all__ as _bank
from rotrnn.ops.block import *  # noqa: F403
from rotrnn.ops.block import __all__ as _block
from rotrnn.ops.conv import *  # noqa: F403
from rotrnn.ops.conv import __all__ as _conv
from rotrnn.ops.delta import *  # noqa: F403
from rotrnn.ops.delta import __all__ as _delta
from rotrnn.ops.dense import *  # noqa: F403
from rotrnn.ops.dense import __all__ as _dense
from rotrnn.ops.diagonal import *  # noqa: F403
from rotrnn.ops.diagonal import __all__ as _diagonal
from rotrnn.ops.dplr_bank import *  # noqa: F403
from rotrnn.ops.dplr_bank import __all__ as _dplr_bank
from rotrnn.ops.hold import *  # noqa: F403
from rotrnn.ops.hold import __all__ as _hold
from rotrnn.ops.linear_layer import *  # noqa: F403
from rotrnn.ops.linear_layer import __all__ as _linear_layer
from rotrnn.ops.memory import *  # noqa: F403
from rotrnn.ops.memory import __all__ as _memory
from rotrnn.ops.mixer import *  # noqa: F403
from rotrnn.ops.mixer import __all__ as _mixer
from rotrnn.ops.mlstm import *  # noqa: F403
from rotrnn.ops.mlstm import __all__ as _mlstm
from rotrnn.ops.orthogonal import *  # noqa: F403
from rotrnn.ops.orthogonal import __all__ as _orthogonal
from rotrnn.ops.oscillator import *  # noqa: F403
from rotrnn.ops.oscillator import __all__ as _oscillator
from rotrnn.ops.permuted import *  # noqa: F403
from rotrnn.ops.permuted import __all__ as _permuted
from rotrnn.ops.pointwise import *  # noqa: F403
from rotrnn.ops.pointwise import __all__ as _pointwise
from rotrnn.ops.rnn import *  # noqa: F403
from rotrnn.ops.rnn import __all__ as _rnn
from rotrnn.ops.sampled import *  # noqa: F403
from rotrnn.ops.sampled import __all__ as _sampled
from rotrnn.ops.scan import *  # noqa: F403
from rotrnn.ops.scan import __all__ as _scan
from rotrnn.ops.selective import *  # noqa: F403
from rotrnn.ops.selective import __all__ as _selective
from rotrnn.ops.slstm import *  # noqa: F403
from rotrnn.ops.slstm import __all__ as _slstm
from rotrnn.ops.split import *  # noqa: F403
from rotrnn.ops.split import __all__ as _split
from rotrnn.ops.ssd import *  # noqa: F403
from rotrnn.ops.ssd import __all__ as _ssd
from rotrnn.ops.trapezoid import *  # noqa: F403
from rotrnn.ops.trapezoid import __all__ as _trapezoid
from rotrnn.ops.turn import *  # noqa: F403
from rotrnn.ops.turn import __all__ as _turn
from rotrnn.ops.window import *  # noqa: F403
from rotrnn.ops.window import __all__ as _window

if not TYPE_CHECKING:  # type checkers read the imports above: they cannot follow a list that is computed
    __all__ = [
        *_attention,
        *_bank,
        *_block,
        *_conv,
        *_delta,
        *_dense,
        *_diagonal,
        *_dplr_bank,
        *_hold,
        *_linear_layer,
        *_memory,
        *_mixer,
        *_mlstm,
        *_orthogonal,
        *_oscillator,
        *_permuted,
        *_pointwise,
        *_rnn,
        *_sampled,
        *_scan,
        *_selective,
        *_slstm,
        *_split,
        *_ssd,
        *_trapezoid,
        *_turn,
        *_window,
    ]

    def __dir__() -> list[str]:
        return __all__
