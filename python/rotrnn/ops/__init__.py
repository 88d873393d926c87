"""Public forward and backward functions on top of the C kernels: NumPy arrays in, NumPy arrays out.

Each module lists its public names in its ``__all__``, and the package has these names.

Order of arguments: functions of each step alone take x, then the weights, as in torch.nn.functional. Recurrences and
mixers take their coefficients, x (or u) and the initial state, as in ``h_t = a_t h_{t-1} + x_t``. Two families keep the
order of their papers: the selective scans (x, delta, A, B, C), and attention and its relatives (q, k, v). Initial
states are h0, c0, n0, m0, final states hT, cT, nT, mT; a state of several arrays is `state`. A backward function takes
the gradient of the output, then arguments of forward in their order, with results of forward where needed, then by
keyword dhT, the gradient of a final state.
"""

from typing import TYPE_CHECKING

from rotrnn.ops.attention import *  # noqa: F403
from rotrnn.ops.bank import *  # noqa: F403
from rotrnn.ops.block import *  # noqa: F403
from rotrnn.ops.conv import *  # noqa: F403
from rotrnn.ops.delta import *  # noqa: F403
from rotrnn.ops.dense import *  # noqa: F403
from rotrnn.ops.diagonal import *  # noqa: F403
from rotrnn.ops.dplr_bank import *  # noqa: F403
from rotrnn.ops.hold import *  # noqa: F403
from rotrnn.ops.linear_layer import *  # noqa: F403
from rotrnn.ops.memory import *  # noqa: F403
from rotrnn.ops.mixer import *  # noqa: F403
from rotrnn.ops.mlstm import *  # noqa: F403
from rotrnn.ops.orthogonal import *  # noqa: F403
from rotrnn.ops.oscillator import *  # noqa: F403
from rotrnn.ops.permuted import *  # noqa: F403
from rotrnn.ops.pointwise import *  # noqa: F403
from rotrnn.ops.rnn import *  # noqa: F403
from rotrnn.ops.sampled import *  # noqa: F403
from rotrnn.ops.scan import *  # noqa: F403
from rotrnn.ops.selective import *  # noqa: F403
from rotrnn.ops.slstm import *  # noqa: F403
from rotrnn.ops.split import *  # noqa: F403
from rotrnn.ops.ssd import *  # noqa: F403
from rotrnn.ops.trapezoid import *  # noqa: F403
from rotrnn.ops.turn import *  # noqa: F403
from rotrnn.ops.window import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers read the imports above: they cannot follow a list that is computed
    __all__ = [name for name, one in globals().items() if callable(one) and name[0] != "_"]

    def __dir__() -> list[str]:
        return __all__
