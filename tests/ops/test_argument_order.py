"""The order of arguments that `rotrnn.ops` promises."""

from __future__ import annotations

import inspect

import pytest

from rotrnn import ops

FUNCTIONS = {name: list(inspect.signature(getattr(ops, name)).parameters) for name in ops.__all__ if name.islower()}
FORWARD = {name: given for name, given in FUNCTIONS.items() if not name.endswith("_backward")}
STATES = {"h0", "c0", "n0", "m0", "state"}
GRADIENTS = {"dy", "dh", "dm", "dP", "da", "dw_in"}
OF_NO_INPUT = {"mask_padding", "split_end", "split_lengths", "wrope_angle"}
OF_NO_INPUT |= {"orthogonal", "polar_transition", "diagonal_weights"}  # of parameters alone


@pytest.mark.parametrize("name", sorted(FORWARD.keys() - OF_NO_INPUT))
def test_inputs_stand_where_their_family_has_them(name: str) -> None:
    given = FORWARD[name]
    inputs = [given.index(one) for one in ("x", "u", "u_t", "h") if one in given]
    states = [given.index(one) for one in STATES if one in given]
    if "q" in given:
        assert given[:3] == ["q", "k", "v"]
    elif "delta" in given or "norm" in given or name == "causal_conv":
        assert given[0] == "x"
        assert all(given.index("x") < one for one in states)
    elif name.endswith("_step"):
        assert given[-2:] == ["state", "u_t"]
    elif states or "origin" in given or name == "history_read":
        assert inputs
        assert max(inputs) > 0
        assert all(max(inputs) < one for one in states)
    else:
        assert given[0] in {"x", "ids", "value", "logits", "predictions"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - FORWARD.keys()))
def test_backward_takes_the_gradient_and_then_what_forward_took(name: str) -> None:
    first, *rest = FUNCTIONS[name]
    assert first in GRADIENTS
    forward = FORWARD[name.removesuffix("_backward")]
    signature = inspect.signature(getattr(ops, name)).parameters
    again = [one for one in rest if one in forward and signature[one].kind is not inspect.Parameter.KEYWORD_ONLY]
    assert again == [one for one in forward if one in again]
