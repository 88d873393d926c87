"""What a user of the modules does: state dicts, training, saving, dropout, and mistakes with the message of each."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import pickle
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from modules import B, T, input_of, moved
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

import rotrnn
import rotrnn.torch
from cores import CORES, D, model
from rotrnn.models.call import Call, form_of, leaves_of
from rotrnn.models.model import NEEDS_DT
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import flatten

DRAWING = {
    *("dropout", "activation", "gate", "feed-forward", "gated feed-forward", "block", "plain block", "transformer"),
    *(name for name in CORES if name.endswith(" of tokens")),
}
"""Cores with dropout."""


@pytest.mark.parametrize("name", CORES)
def test_a_state_dict_has_the_names_of_the_package_and_goes_round(name: str) -> None:
    core = CORES[name]
    net = moved(core, torch.float32)
    given = dict(flatten(core.init(np.random.default_rng(0))))
    assert {name: tuple(one.shape) for name, one in net.state_dict().items()} == {
        name: one.shape for name, one in given.items()
    }
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = rotrnn.torch.Module(core)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = input_of(core, torch.float32)
    assert torch.equal(other.eval()(x), net.eval()(x))


def test_modules_by_the_name_of_their_settings() -> None:
    net = rotrnn.torch.LRU(D, d_state=3)
    assert isinstance(net, rotrnn.torch.Module)
    assert net.core == rotrnn.LRU(D, d_state=3)
    assert "LRU(d_model=4, d_state=3" in repr(net)
    assert rotrnn.torch.LRU.__name__ == "LRU"
    assert {kind.__name__ for kind in rotrnn.LAYERS.values()} <= set(dir(rotrnn.torch))
    with pytest.raises(AttributeError, match=r"module 'rotrnn\.torch' has no attribute 'LRUU'"):
        _ = rotrnn.torch.LRUU


def test_parameters_are_drawn_by_torch_or_given() -> None:
    torch.manual_seed(1)
    first = rotrnn.torch.LRU(D, d_state=3)
    second = rotrnn.torch.LRU(D, d_state=3)
    torch.manual_seed(1)
    again = rotrnn.torch.LRU(D, d_state=3)
    assert torch.equal(first.B_re, again.B_re)
    assert not torch.equal(first.B_re, second.B_re)
    params = rotrnn.LRU(D, d_state=3).init(np.random.default_rng(0))
    net = rotrnn.torch.LRU(D, d_state=3, params=params)
    for name, one in net.params().items():
        np.testing.assert_array_equal(one, params[name])
        assert not np.shares_memory(one, params[name])
        assert np.shares_memory(one, getattr(net, name).detach().numpy())


def test_parameters_are_on_the_default_device() -> None:
    """As those of PyTorch's own modules; and without memory until there is something to load."""
    whole = rotrnn.torch.LRU(D, d_state=3)
    with torch.device("meta"):
        net = rotrnn.torch.LRU(D, d_state=3)
    assert {one.device.type for one in net.parameters()} == {"meta"}
    x = torch.ones(B, T, D)
    with pytest.raises(TypeError, match=r"LRU\.forward: x is on cpu and nu_log on meta, expected one"):
        net(x)
    assert net(x.to("meta")).is_meta
    net.to_empty(device="cpu").load_state_dict(whole.state_dict())
    assert torch.equal(net(x), whole(x))


@pytest.mark.parametrize("name", CORES)
def test_a_module_made_on_meta_is_filled_later(name: str) -> None:
    """Nothing is drawn before; then the same numbers are as at once."""
    torch.manual_seed(1)
    whole = rotrnn.torch.Module(CORES[name])
    torch.manual_seed(1)
    with torch.device("meta"):
        net = rotrnn.torch.Module(CORES[name])
    assert list(net.state_dict()) == list(whole.state_dict())
    net.to_empty(device="cpu").reset_parameters()
    for got, expected in zip(net.state_dict().values(), whole.state_dict().values(), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_the_ops_may_be_loaded_again() -> None:
    """As notebooks with autoreload do."""
    code = (
        "import importlib, torch, rotrnn.torch\n"
        "net, x = rotrnn.torch.LRU(4, d_state=3), torch.ones(2, 5, 4)\n"
        "y = net(x)\n"
        "for _ in range(2): importlib.reload(rotrnn.torch.ops)\n"
        "again = net(x)\n"
        "again.sum().backward()\n"
        "assert torch.equal(y, again) and net.B_re.grad.any()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_is_shared_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """x and parameters are the core's own arguments, and y is what it returned."""
    seen: list[Any] = []
    forward = Call.forward

    def spied(self: Call, inputs: Any) -> Any:
        outputs, plan = forward(self, inputs)
        seen.append((inputs, outputs))
        return outputs, plan

    monkeypatch.setattr(Call, "forward", spied)
    net, x = moved(rotrnn.LRU(D, 3), torch.float32), torch.randn(B, T, D)
    y = net(x)
    ((inputs, outputs),) = seen
    assert inputs.x.__array_interface__["data"][0] == x.data_ptr()
    assert inputs.params[0].__array_interface__["data"][0] == net.nu_log.data_ptr()
    assert outputs[0].__array_interface__["data"][0] == y.data_ptr()


def test_tensors_may_be_resized_after_a_call() -> None:
    """Parameters, too, as FSDP does between calls."""
    net, x = rotrnn.torch.LRU(D, d_state=3), torch.randn(B, T, D)
    net(x.requires_grad_()).sum().backward()
    for one in (x, *net.parameters()):
        one.untyped_storage().resize_(0)


def test_a_module_that_fsdp_shards(tmp_path: Path) -> None:
    code = (
        "import copy, torch, rotrnn.torch\n"
        "from torch.distributed import init_process_group\n"
        "from torch.distributed.fsdp import fully_shard\n"
        f"init_process_group('gloo', init_method={(tmp_path / 'group').as_uri()!r}, rank=0, world_size=1)\n"
        "plain, x = rotrnn.torch.LRU(4, d_state=3), torch.randn(2, 5, 4)\n"
        "sharded = copy.deepcopy(plain)\n"
        "fully_shard(sharded)\n"
        "for net in (plain, sharded):\n"
        "    for _ in range(2):\n"
        "        net(x).square().sum().backward()\n"
        "        torch.optim.SGD(net.parameters(), 0.1).step()\n"
        "assert torch.equal(sharded(x), plain(x))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_input_that_is_not_contiguous() -> None:
    net, x = moved(rotrnn.Mamba(D, 3), torch.float64), torch.randn(D, T, B, dtype=torch.float64).permute(2, 1, 0)
    plain = x.contiguous().requires_grad_()
    x.requires_grad_()
    results = []
    for one in (x, plain):
        net.zero_grad()
        y = net(one)
        y.square().sum().backward()
        results.append([y, *(param.grad for param in net.parameters())])
    assert all(map(torch.equal, *results))
    assert torch.equal(x.grad, plain.grad)


def test_adamw_trains_and_a_compiled_step_sees_new_parameters() -> None:
    """A layer between two of PyTorch's learns to sum; eager and compiled training have the same losses, which a
    parameter from before the last step would change."""
    x = torch.randn(16, 12, 3, generator=torch.Generator().manual_seed(0))
    target = x.cumsum(1)[..., :1]
    histories = []
    for compiled in (False, True):
        torch.manual_seed(0)
        torch.compiler.reset()
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), rotrnn.torch.LRU(8, d_state=8), torch.nn.Linear(8, 1))
        run = torch.compile(net, fullgraph=True, backend="aot_eager") if compiled else net
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
        losses = []
        for _ in range(40):
            loss = torch.nn.functional.mse_loss(run(x), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        histories.append(losses)
    assert histories[0][-1] < histories[0][0] / 3
    assert histories[0] == histories[1]


def test_a_model_trained_here_is_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = rotrnn.torch.Module(model("classifier", dropout=0.1)).train()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    tokens, labels = torch.randint(6, (8, T)), torch.randint(6, (8,))
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(tokens), labels).backward()
        optimiser.step()
    net.eval()
    net.save(tmp_path / "model.safetensors")
    again = rotrnn.torch.load(tmp_path / "model.safetensors").eval()
    assert again.core == net.core
    assert torch.equal(again(tokens), net(tokens))
    core, params = rotrnn.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(core.forward(params, tokens.numpy())[0], net(tokens).detach().numpy())
    rounded = rotrnn.torch.load(tmp_path / "model.safetensors", precision="bf16").eval()
    assert torch.equal(rounded(tokens), rotrnn.torch.Module(core, params, precision="bf16").eval()(tokens))
    assert not torch.equal(rounded(tokens), net(tokens))
    with pytest.raises(TypeError, match=r"Module\.save: the core is an LRU, expected a model"):
        rotrnn.torch.LRU(D, d_state=3).save(tmp_path / "layer")


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(rotrnn.torch.LRU)) is rotrnn.torch.LRU
    net, x = moved(CORES["block"], torch.float32).eval(), input_of(CORES["block"], torch.float32)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), net(x))


def test_dropout_is_drawn_by_torch_and_kept_for_backward() -> None:
    net, x = rotrnn.torch.Dropout(0.5).train(), torch.ones(2, 50, D, requires_grad=True)
    torch.manual_seed(0)
    first, second = net(x), net(x)
    torch.manual_seed(0)
    assert torch.equal(net(x), first)
    assert not torch.equal(first, second)
    (dx,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(dx, first)
    assert torch.equal(net.eval()(x), x)


@pytest.mark.parametrize("name", CORES)
def test_what_another_key_changes_draws(name: str) -> None:
    """Otherwise every call would have the same key."""
    net, x = moved(CORES[name], torch.float32).train(), input_of(CORES[name], torch.float32)
    draws, net._draws = net._draws, True
    outputs = []
    for seed in range(4):
        torch.manual_seed(seed)
        outputs.append(net(x).detach())
    assert draws or all(torch.equal(one, outputs[0]) for one in outputs)


@pytest.mark.parametrize(
    ("core", "draws"),
    [
        *((one, name in DRAWING) for name, one in CORES.items()),
        (rotrnn.FixedPointRNN(D, 4), False),
        (rotrnn.FixedPointRNN(D, 4, train_iterations=2), False),
        (rotrnn.FixedPointRNN(D, 4, train_iterations="gamma"), True),
        (rotrnn.Bidirectional(D, rotrnn.Bedouin(D, 4, train_iterations="gamma")), True),
        (rotrnn.Dropout(0.0), False),
        (model("tagger", features=True), False),
    ],
    ids=str,
)
def test_only_what_needs_random_numbers_draws_them(core: Any, draws: bool) -> None:
    """In training, and nothing does in evaluation."""
    net, x = moved(core), input_of(core)
    for train in (True, False):
        before = torch.get_rng_state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)
            net.train(train)(x)
        assert torch.equal(before, torch.get_rng_state()) != (draws and train)


def test_a_layer_of_the_users_own_may_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(rotrnn.LRU):
        pass

    monkeypatch.setitem(rotrnn.LAYERS, "noisy", Noisy)
    assert Noisy(D, d_state=3).draws
    assert rotrnn.ResidualBlock(rotrnn.LayerNorm(D), Noisy(D, d_state=3), rotrnn.Dropout(0.0)).draws


# ---- groups of parameters, and parametrizations ----


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def test_groups_of_parameters_need_no_names() -> None:
    """Within another network, compiled, and with parametrizations or masks."""
    core = model("tagger", features=True)
    net = rotrnn.torch.Module(core)
    expected = [one for name, one in net.named_parameters() if core.is_recurrent(name)]
    rest = [one for name, one in net.named_parameters() if not core.is_recurrent(name)]
    assert len(expected) > 1 < len(rest)
    linear = torch.nn.Linear(3, 3)
    whole = torch.nn.Sequential(linear, torch.compile(net))
    slow, others = rotrnn.torch.parameter_groups(whole, lr=0.1, weight_decay=0.0)
    assert list(map(id, slow.pop("params"))) == list(map(id, expected))
    assert slow == {"lr": 0.1, "weight_decay": 0.0}
    assert list(map(id, others.pop("params"))) == list(map(id, [*linear.parameters(), *rest]))
    assert not others

    part = net.blocks[0].layer if hasattr(net.blocks, "__getitem__") else getattr(net.blocks, "0").layer
    weight_norm(part, "B_re")
    register_parametrization(part, "C_re", Twice())
    layer = rotrnn.torch.LRU(D, d_state=3)
    torch.nn.utils.prune.random_unstructured(layer, "B_im", 0.5)
    slow, others = rotrnn.torch.parameter_groups(torch.nn.ModuleList([net, layer]), lr=0.1)
    in_slow = set(map(id, slow["params"]))
    held = part.parametrizations
    assert {id(held.B_re.original0), id(held.B_re.original1), id(layer.B_im_orig)} < in_slow
    assert id(held.C_re.original) in set(map(id, others["params"]))
    assert len(in_slow) == len(expected) + 1 + len(rotrnn.LRU.recurrent & {*layer.core.shapes})
    torch.optim.AdamW([slow, others])


def test_mistakes_in_groups_of_parameters() -> None:
    with pytest.raises(TypeError, match=r"^parameter_groups: net is an LRU, expected a torch\.nn\.Module$"):
        rotrnn.torch.parameter_groups(rotrnn.LRU(D, 3), lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^parameter_groups: net is a Linear without modules of rotrnn, expected some"
    ):
        rotrnn.torch.parameter_groups(torch.nn.Linear(2, 2), lr=0.1)
    layer = rotrnn.torch.LRU(D, d_state=3)
    layer.register_parameter("B_ree", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(
        ValueError, match=r"LRU\.is_recurrent: name is 'B_ree', expected the name .*; did you mean B_re\?$"
    ):
        rotrnn.torch.parameter_groups(layer, lr=0.1)


def test_parametrized_parameters_are_drawn_anew() -> None:
    layer = rotrnn.torch.LRU(D, d_state=3).double()
    weight_norm(layer, "B_re")
    register_parametrization(layer, "C_re", Twice())
    torch.manual_seed(3)
    expected = rotrnn.torch.LRU(D, d_state=3)
    torch.manual_seed(3)
    layer.reset_parameters()
    for name, one in expected.named_parameters():
        torch.testing.assert_close(getattr(layer, name), one.double())
    assert {one.dtype for one in layer.parameters()} == {torch.float64}
    assert torch.equal(layer.parametrizations.C_re.original, expected.C_re.double() / 2)


@pytest.mark.parametrize("changed", ["x", "a parameter", "a state"])
def test_a_change_in_place_before_backward_is_found(changed: str) -> None:
    net, x = rotrnn.torch.LRU(D, d_state=3), torch.randn(B, T, D)
    _, state = net(x, return_state=True)
    state = state.detach()
    y = net(x, state=state)
    with torch.no_grad():
        {"x": x, "a parameter": net.nu_log, "a state": state}[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_y_may_be_changed_in_place() -> None:
    """As by an activation; forward of this layer has saved no y."""
    net, x = rotrnn.torch.LRU(D, d_state=3), torch.randn(B, T, D)
    y = net(x)
    y.relu_()
    y.sum().backward()
    assert net.nu_log.grad.abs().sum() > 0


def test_a_second_derivative_is_refused() -> None:
    net, x = rotrnn.torch.LRU(D, d_state=3), torch.randn(B, T, D, requires_grad=True)
    (dx,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"rotrnn\.torch: a gradient of a gradient was asked for"):
        dx.sum().backward()


def test_backward_twice_and_checkpointing() -> None:
    net, x = moved(CORES["block"], torch.float64).train(), input_of(CORES["block"]).requires_grad_()
    y = net(x)
    once = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(*once, *torch.autograd.grad(y.sum(), x))
    torch.manual_seed(0)
    plain = torch.autograd.grad(net(x).sum(), x)
    torch.manual_seed(0)
    again = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
    assert torch.equal(*plain, *torch.autograd.grad(again.sum(), x))


def test_what_was_saved_is_freed() -> None:
    net, x = rotrnn.torch.LRU(D, d_state=3), torch.randn(B, T, D, requires_grad=True)
    node = net(x).grad_fn
    alive = weakref.ref(node)
    del node
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lru", "mamba2", "attention", "block", "classifier of tokens"])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    """y and gradients are those of a float32 module with the same numbers, rounded; states are not rounded."""
    core = CORES[name]
    net = moved(core, torch.float32).to(dtype).eval()
    wide = copy.deepcopy(net).float()
    x = input_of(core, torch.float32)
    x = x.to(dtype) if x.is_floating_point() else x
    results = []
    for one, given in ((net, x), (wide, x.float() if x.is_floating_point() else x)):
        given = given.clone().requires_grad_(given.is_floating_point())
        y, state = one(given, return_state=True)
        torch.manual_seed(0)
        y.backward(torch.randn(y.shape).to(dtype).to(y.dtype))
        after = leaves_of(form_of(core), state)
        again = one(given, state=state)
        grads = [given.grad, *(param.grad for param in one.parameters())]
        results.append(([y, again, *(grad for grad in grads if grad is not None)], after))
    (got, states), (expected, wider) = results
    assert {one.dtype for one in got} == {dtype}
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other.to(dtype))
    assert all(map(torch.equal, states, wider))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_half_precision_is_saved_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    net = rotrnn.torch.Module(model("classifier")).to(dtype).eval()
    net.save(tmp_path / "m.safetensors")
    wide = rotrnn.torch.load(tmp_path / "m.safetensors").eval()
    tokens = torch.randint(6, (3, T))
    assert torch.equal(net(tokens), wide(tokens).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_statistics_stay_in_float32_beside_half_precision(dtype: torch.dtype) -> None:
    """As in FSDP with ``MixedPrecisionPolicy(param_dtype=dtype)``, which converts parameters alone."""
    net = rotrnn.torch.Module(rotrnn.BatchNorm(D))
    x = torch.randn(3, T, D).to(dtype)
    wide = copy.deepcopy(net)
    for one in net.parameters():
        one.data = one.data.to(dtype)
    assert torch.equal(net(x), wide(x.float()).to(dtype))
    assert all(map(torch.equal, net.buffers(), wide.buffers()))
    assert {one.dtype for one in net.buffers()} == {torch.float32}
    with pytest.raises(TypeError, match=r"x has dtype torch.float64 and scale torch.\w+, expected one dtype"):
        net(x.double())


def test_a_layer_within_autocast() -> None:
    """Between PyTorch's own layers, which return bfloat16 there; parameters and their gradients stay in float32."""
    torch.manual_seed(0)
    first, layer, last = torch.nn.Linear(3, 8), rotrnn.torch.LRU(8, d_state=4), torch.nn.Linear(8, 2)
    x = torch.randn(2, 6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        h = first(x)
        y = layer(h)
        last(y).sum().backward()
    assert h.dtype == y.dtype == torch.bfloat16
    assert torch.equal(y, layer(h.float()).bfloat16())
    assert {one.grad.dtype for part in (first, layer, last) for one in part.parameters()} == {torch.float32}
    assert layer(x.repeat(1, 1, 3)[..., :8]).dtype == torch.float32


# ---- mistakes ----


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda net, x: net(x.numpy()), TypeError, r"LRU\.forward: x is an ndarray, expected a torch\.Tensor"),
        (
            lambda net, x: net(x.double()),
            TypeError,
            r"x has dtype torch\.float64 and nu_log torch\.float32, expected one",
        ),
        (
            lambda net, x: net(x.half()),
            TypeError,
            r"x has dtype torch\.float16 and nu_log torch\.float32, expected one",
        ),
        (
            lambda net, x: net(x.to(torch.float8_e4m3fn)),
            TypeError,
            r"x has dtype torch\.float8_e4m3fn and nu_log torch\.float32, expected one",
        ),
        (lambda net, x: net(x.to("meta")), TypeError, r"x is on meta and nu_log on cpu, expected one"),
        (lambda net, x: net.to("meta")(x), TypeError, r"x is on cpu and nu_log on meta, expected one"),
        (
            lambda net, x: net(x[..., :2]),
            ValueError,
            r"LRU\.forward: x has shape \(2, 7, 2\), expected \(B, T, D=4\)",
        ),
        (lambda net, x: net(x, [7]), ValueError, r"LRU\.forward: lengths has shape \(1,\), expected \(B=2,\)"),
        (lambda net, x: net(x, [7, 8]), ValueError, r"lengths\[1\] is 8, expected an integer from 0 to T=7"),
        *(
            (
                lambda net, x, one=one: net(x, one),
                TypeError,
                rf"LRU\.forward: lengths has dtype {one.dtype}, expected an",
            )
            for one in (torch.tensor([0.65, 1.0]), torch.tensor([1.0, 2.0]).half(), torch.tensor([True, False]))
        ),
        (lambda net, x: net(x, [3.0, 1.5]), TypeError, r"LRU\.forward: lengths has dtype torch\.float32, expected an"),
        (lambda net, x: net(x, "ab"), TypeError, r"LRU\.forward: lengths is 'ab', expected integers"),
        (lambda net, x: net(x, [7, None]), TypeError, r"LRU\.forward: lengths is \[7, None\], expected integers"),
        (lambda net, x: net(x, torch.tensor([7, 7], device="meta")), TypeError, r"x is on cpu and lengths on meta"),
        (lambda net, x: net(x, reset="ab"), TypeError, r"LRU\.forward: reset is 'ab', expected booleans"),
        (
            lambda net, x: net(x, reset=torch.zeros(B, T)),
            TypeError,
            r"reset has dtype torch\.float32, expected",
        ),
        (lambda net, x: net(x, cu_seqlens="ab"), TypeError, r"LRU\.forward: cu_seqlens is 'ab', expected integers"),
        (lambda net, x: net(x, cu_seqlens=[]), ValueError, r"LRU\.forward: cu_seqlens has shape \(0,\), expected \(S"),
        (lambda net, x: net(x, cu_seqlens=torch.tensor([0, 7], device="meta")), TypeError, "cu_seqlens has no numbers"),
        (lambda net, x: net(x, return_state=1), TypeError, r"LRU\.forward: return_state is 1, expected True or False"),
        (
            lambda net, x: net(x.to_sparse()),
            TypeError,
            r"LRU\.forward: x has layout torch\.sparse_coo, expected",
        ),
        (lambda net, x: setattr(net, "D", None) or net(x), TypeError, r"LRU\.forward: the parameter D is None"),
        (lambda net, x: net(x, state=[x]), TypeError, r"LRU\.forward: state is a list, expected one as return_state"),
        (
            lambda net, x: net(x, state=net(x, return_state=True)[1].to("meta")),
            TypeError,
            "LRU.forward: x is on cpu and state on meta, expected one",
        ),
        (
            lambda net, x: net(x, state=net(x, return_state=True)[1].detach().to_sparse()),
            TypeError,
            r"LRU\.forward: state has layout torch\.sparse_coo, expected dense tensors as return_state",
        ),
        (
            lambda net, x: net(x, state=net(x, return_state=True)[1].to(torch.complex32)),
            TypeError,
            r"LRU\.forward: state has dtype torch\.complex32, expected dense tensors as return_state",
        ),
        (
            lambda net, x: net(x, (x, x)),
            TypeError,
            r"(?s)LRU\.forward: lengths is \(tensor.*expected integers \(a state goes",
        ),
        (lambda net, x: net(x, state=x), TypeError, r"LRU\.forward: state has dtype float32, expected complex64 or"),
        (lambda net, x: net(x.long()), TypeError, r"LRU\.forward: x has dtype int64, expected float32 or float64"),
        (
            lambda net, x: net(x.to(torch.complex32)),
            TypeError,
            r"LRU\.forward: x has dtype torch\.complex32, expected torch\.float32, float64, bfloat16 or float16",
        ),
        (
            lambda net, x: net(x, dt=x[..., 0].to(torch.complex32)),
            TypeError,
            r"LRU\.forward: dt has dtype torch\.complex32, expected a floating-point or integer dtype",
        ),
    ],
)
def test_mistakes_in_a_call(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(rotrnn.torch.LRU(D, d_state=3), torch.zeros(B, T, D))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_dtypes_of_token_ids(device: str) -> None:
    net, ids = rotrnn.torch.Module(model("language")).to(device), torch.ones(B, T, dtype=torch.int64)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        y = net(ids.to(getattr(torch, name)).to(device))
        assert y.is_meta if device == "meta" else torch.equal(y, net(ids))
    for name in ("uint64", "bool", "complex64"):
        with pytest.raises(TypeError, match=rf"^LanguageModel\.forward: inputs has dtype {name}, expected int64 or"):
            net(ids.to(getattr(torch, name)).to(device))
    with pytest.raises(
        TypeError, match=r"^LanguageModel\.forward: x has dtype torch\.complex32, expected .* token ids$"
    ):
        net(torch.zeros(B, T, dtype=torch.complex32, device=device))


def test_mistakes_in_a_module() -> None:
    with pytest.raises(ValueError, match="Module: precision is 'half', expected one of float32, tf32, bf16"):
        rotrnn.torch.LRU(D, d_state=3, precision="half")
    with pytest.raises(ValueError, match="LRU: parameter nu_log is missing"):
        rotrnn.torch.LRU(D, d_state=3, params={})
    with pytest.raises(TypeError, match="Module: core is a dict, expected a layer, block, stack or model"):
        rotrnn.torch.Module({})
    assert not hasattr(rotrnn.torch, "FeedForwardBlock")
    assert "FeedForwardBlock" not in dir(rotrnn.torch)
    with pytest.raises(TypeError, match="Module: core is a FeedForwardBlock, which runs in a ResidualStack"):
        rotrnn.torch.Module(CORES["transformer"].blocks[0])

    class Own(rotrnn.LRU):
        pass

    with pytest.raises(
        ValueError, match="Module: could not load an Own again, expected a part of rotrnn or a layer in"
    ):
        rotrnn.torch.Module(Own(D, 3))
    with pytest.raises(ValueError, match=r"Bidirectional\.forward: it has no state to return"):
        rotrnn.torch.Module(CORES["bidirectional"])(torch.zeros(B, T, D), return_state=True)


def test_only_the_outer_module_runs() -> None:
    net = moved(CORES["tagger of features"], torch.float32)
    with pytest.raises(NotImplementedError, match=r"^rotrnn\.torch: a part of a module was called, .* only it runs"):
        net.blocks(torch.zeros(B, T, D))


def test_the_core_of_a_module_is_fixed() -> None:
    net = rotrnn.torch.LRU(D, d_state=3)
    with pytest.raises(AttributeError, match=r"Module\.core: is read-only, expected a new module: Module\(core, net"):
        net.core = rotrnn.LRU(D, 3, window=4)
    assert net.core == rotrnn.LRU(D, 3)
    assert rotrnn.torch.Module(rotrnn.LRU(D, 3, window=4), net.params()).core.window == 4


def test_a_precision_is_that_of_forward_and_backward() -> None:
    """Also where another one is set around the calls."""
    params = rotrnn.RNN(D, 5).init(np.random.default_rng(0))
    x, results = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0)), []
    for around in ("float32", "tf32"):
        net = rotrnn.torch.RNN(D, 5, params=params, precision="bf16")
        with rotrnn.precision(around):
            y = net(x)
        y.sum().backward()
        results.append([y, *(param.grad for param in net.parameters())])
    assert all(map(torch.equal, *results))
    with rotrnn.precision("bf16"):
        expected, _ = net.core.forward(net.params(), x.numpy())
    np.testing.assert_array_equal(results[0][0].detach().numpy(), expected)
    assert not torch.equal(results[0][0], rotrnn.torch.RNN(D, 5, params=params)(x))


def test_rotrnn_does_not_import_torch() -> None:
    code = "import sys, rotrnn; rotrnn.LRU(2, 2); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import rotrnn.torch"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: rotrnn.torch needs PyTorch, which is not installed; pip install 'rotrnn[torch]'" in run.stderr


@pytest.mark.parametrize("name", ["mamba2", "lru"])
def test_a_packed_row_has_the_results_of_its_sequences(name: str) -> None:
    layer = rotrnn.Mamba2(D, d_state=3, d_head=4) if name == "mamba2" else rotrnn.LRU(D, 3)
    net = rotrnn.torch.Module(layer).double()
    x, bounds = torch.randn(1, 9, D, dtype=torch.float64, requires_grad=True), torch.tensor([0, 4, 4, 9])
    y, state = net(x, cu_seqlens=bounds, return_state=True)
    weights = torch.randn_like(y)
    dx, *dparams = torch.autograd.grad((weights * y).sum(), [x, *net.parameters()])
    parts = [net(x[:, begin:end], return_state=True) for begin, end in ((0, 4), (4, 4), (4, 9))]
    torch.testing.assert_close(y, torch.cat([part for part, _ in parts], 1))
    for s, (_, after) in enumerate(parts):
        for leaf, own in zip(*((one if isinstance(one, tuple) else (one,)) for one in (state, after)), strict=True):
            torch.testing.assert_close(leaf[s : s + 1], own)
    apart = torch.cat([part for part, _ in parts], 1)
    expected = torch.autograd.grad((weights * apart).sum(), [x, *net.parameters()])
    for got, wanted in zip([dx, *dparams], expected, strict=True):
        torch.testing.assert_close(got, wanted)
    later = net(x, state=state, cu_seqlens=bounds)
    torch.testing.assert_close(later[:, :4], net(x[:, :4], state=parts[0][1]))


@pytest.mark.parametrize("layer", [rotrnn.S4D(D, 4), rotrnn.S5(D, 4)], ids=["s4d", "s5"])
def test_intervals_are_those_of_the_context(layer: Any) -> None:
    """Outputs, states and gradients have the bits of the layer's forward and backward; a packed row has the results of
    its sequences."""
    net = rotrnn.torch.Module(layer).double()
    x, dt = torch.randn(2, 7, D, dtype=torch.float64, requires_grad=True), torch.rand(2, 7, dtype=torch.float64) + 0.1
    y, state = net(x, [7, 4], dt=dt, return_state=True)
    weights = torch.randn_like(y)
    found = torch.autograd.grad((weights * y).sum(), [x, *net.parameters()])
    ctx = rotrnn.Context(np.array([7, 4]), dt=dt.numpy())
    expected, saved = layer.forward(net.params(), x.detach().numpy(), ctx)
    dx, dparams, _ = layer.backward(net.params(), saved, weights.numpy())
    for got, wanted in zip(
        [y, state, *found], [expected, saved.state, dx, *dict(flatten(dparams)).values()], strict=True
    ):
        np.testing.assert_array_equal(got.detach().numpy(), wanted)
    row, times = (torch.cat([one[0], one[1, :4]])[None] for one in (x, dt))
    torch.testing.assert_close(net(row, cu_seqlens=[0, 7, 11], dt=times)[0], torch.cat([y[0], y[1, :4]]))
    assert not torch.allclose(y, net(x, [7, 4]))


def test_a_model_that_was_trained_with_intervals_needs_them(tmp_path: Path) -> None:
    """In rows with resets and packed sequences, too, and after a file; ones are even steps."""
    settings = rotrnn.ModelSettings(layer="s5", d_model=D, n_layers=1)
    even = rotrnn.build_model(settings, {"d_state": 4}, head="step_regressor", n_features=2, n_classes=1)
    net = rotrnn.torch.Module(dataclasses.replace(even, timed=True))
    net.save(tmp_path / "m.safetensors")
    x, ones, message = torch.randn(2, 7, 2), torch.ones(2, 7), f"StepRegressor.forward: {NEEDS_DT}"
    expected = rotrnn.torch.Module(even, net.params())(x)
    for one in (net, rotrnn.torch.load(tmp_path / "m.safetensors")):
        torch.testing.assert_close(one(x, dt=ones), expected)
        for more in ({}, {"lengths": [7, 3]}, {"reset": torch.zeros(2, 7, dtype=torch.bool)}):
            with pytest.raises(ValueError, match=message):
                one(x, **more)
        with pytest.raises(ValueError, match=message):
            one(torch.nn.utils.rnn.pack_sequence([x[0], x[1, :3]]))


def test_intervals_that_are_refused() -> None:
    net, x, dt = rotrnn.torch.S5(D, d_state=4), torch.randn(2, 7, D), torch.ones(2, 7)
    with pytest.raises(NotImplementedError, match=r"LRU.forward: got dt, which LRU does not support"):
        rotrnn.torch.LRU(D, d_state=4)(x, dt=dt)
    with pytest.raises(NotImplementedError, match=r"S5.forward: dt requires a gradient"):
        net(x, dt=dt.clone().requires_grad_())
    with pytest.raises(TypeError, match=r"S5.forward: dt is a list, expected a torch.Tensor"):
        net(x, dt=[[1.0] * 7] * 2)
    with pytest.raises(TypeError, match=r"S5.forward: dt has dtype bool, expected floating-point numbers or integers"):
        net(x, dt=dt.bool())
    for dtype in (torch.uint16, torch.int32, torch.bfloat16):
        assert torch.equal(net(x, dt=dt.to(dtype)), net(x, dt=dt))
    for more in ({}, {"cu_seqlens": [0, 3, 7]}):
        with pytest.raises(ValueError, match=r"S5.forward: dt has shape \(\d, 6\), expected \("):
            net(x[: 2 - len(more)], dt=dt[: 2 - len(more), :6], **more)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match=r"S5.forward: got dt with a nested tensor"):
        net(nested, dt=dt)


def test_errors_of_a_packed_row_are_in_its_words() -> None:
    """S sequences, and the shape that was given, though the row runs as a batch."""
    net, x, bounds = rotrnn.torch.LRU(4, d_state=3), torch.randn(1, 9, 4), [0, 3, 5, 9]
    _, state = net(x, cu_seqlens=bounds, return_state=True)
    with pytest.raises(ValueError, match=r"LRU.forward: state has shape \(2, 3\), expected \(S=3, 3\)"):
        net(x, state=state[:2], cu_seqlens=bounds)
    with pytest.raises(ValueError, match=r"LRU.forward: x has shape \(1, 9, 3\), expected \(B, T, D=4\)"):
        net(x[..., :3], cu_seqlens=bounds)


def test_a_packed_row_of_a_model_has_a_result_for_each_sequence() -> None:
    settings = rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1)
    net = rotrnn.torch.Module(rotrnn.build_model(settings, {"d_state": 3}, vocab=5, n_classes=3))
    tokens = torch.tensor([[1, 2, 3, 4, 0, 1]])
    net.eval()
    logits = net(tokens, cu_seqlens=[0, 2, 6])
    torch.testing.assert_close(logits, torch.cat([net(tokens[:, :2]), net(tokens[:, 2:])]))
    with pytest.raises(ValueError, match=r"SequenceClassifier.forward: cu_seqlens\[1\] is 5, expected T=6"):
        net(tokens, cu_seqlens=[0, 5])
    with pytest.raises(ValueError, match=r"SequenceClassifier.forward: got cu_seqlens and lengths"):
        net(tokens, torch.tensor([6]), cu_seqlens=[0, 6])


@pytest.mark.parametrize("name", ["mamba2", "lru"])
def test_rows_with_resets_have_the_results_of_their_pieces(name: str) -> None:
    layer = rotrnn.Mamba2(D, d_state=3, d_head=4) if name == "mamba2" else rotrnn.LRU(D, 3)
    net = rotrnn.torch.Module(layer).double()
    x = torch.randn(2, 6, D, dtype=torch.float64, requires_grad=True)
    _, first = net(torch.randn(2, 3, D, dtype=torch.float64), return_state=True)
    of = [one.detach().requires_grad_() for one in (first if isinstance(first, tuple) else (first,))]
    state: Any = tuple(of) if isinstance(first, tuple) else of[0]
    rows = [tuple(one[b : b + 1] for one in of) if isinstance(first, tuple) else of[0][b : b + 1] for b in (0, 1)]
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = True  # the second row drops what it was given
    y, after = net(x, state=state, reset=reset, return_state=True)
    pieces = [(x[:1, :4], rows[0]), (x[:1, 4:], None), (x[1:], None)]
    parts = [net(piece, state=before, return_state=True) for piece, before in pieces]
    apart = torch.cat([torch.cat([parts[0][0], parts[1][0]], 1), parts[2][0]])
    torch.testing.assert_close(y, apart)
    weights, leaves = torch.randn_like(y), [x, *of, *net.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((weights * y).sum(), leaves), torch.autograd.grad((weights * apart).sum(), leaves)
    )
    for b, (_, own) in enumerate(parts[1:]):
        for leaf, one in zip(*((one if isinstance(one, tuple) else (one,)) for one in (after, own)), strict=True):
            torch.testing.assert_close(leaf[b : b + 1], one)
    with pytest.raises(ValueError, match=r"forward: state has an array of shape \(2, .*\), expected \(B=1, \.\.\.\)"):
        net(x[:1], state=state, reset=reset[:1])


LENGTHS = 2, 5, 5, 1


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("core", ["layer", "tagger", "classifier"])
def test_a_packed_sequence_is_returned_as_one(core: str, sort: bool) -> None:
    settings = rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1)
    kind: Any = rotrnn.Mamba2(3, d_state=3, d_head=2)
    if core != "layer":
        kind = rotrnn.build_model(settings, {"d_state": 3}, head=core, n_features=3, n_classes=2)
    net = rotrnn.torch.Module(kind).eval()
    lengths = torch.tensor(LENGTHS if not sort else sorted(LENGTHS, reverse=True))
    x = torch.randn(4, 5, 3, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sort)
    expected, after = net(x, lengths, return_state=True)
    y, state = net(packed, return_state=True)
    torch.testing.assert_close(state, after)
    if core == "classifier":
        torch.testing.assert_close(y, expected)
        return
    assert isinstance(y, torch.nn.utils.rnn.PackedSequence)
    for one, other in zip(y[1:], packed[1:], strict=True):
        assert one is other
    torch.testing.assert_close(torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0], expected)
    got, wanted = (torch.autograd.grad((one**2).sum(), x)[0] for one in (y.data, expected))
    torch.testing.assert_close(got, wanted)
    again = net(packed, state=state)
    torch.testing.assert_close(
        torch.nn.utils.rnn.pad_packed_sequence(again, batch_first=True)[0], net(x, lengths, state=after)
    )


def test_a_nested_tensor_is_returned_as_one() -> None:
    net = rotrnn.torch.Module(rotrnn.LRU(D, 3))
    parts = [torch.randn(length, D) for length in LENGTHS]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    y, state = net(x, return_state=True)
    assert y.shape == x.shape  # the same ragged size
    expected = [net(part[None], return_state=True) for part in parts]
    for one, (other, _) in zip(y.unbind(), expected, strict=True):
        torch.testing.assert_close(one, other[0])
    torch.testing.assert_close(state, torch.cat([after for _, after in expected]))
    (x + y).values().sum().backward()  # a residual
    assert x.grad is not None
    assert x.grad.shape == x.shape
    settings = rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1)
    pooled = rotrnn.torch.Module(rotrnn.build_model(settings, {"d_state": 3}, n_features=D, n_classes=2)).eval()
    torch.testing.assert_close(pooled(x), torch.cat([pooled(part[None]) for part in parts]))


def test_sequences_of_torch_are_refused_with_lengths_of_their_own() -> None:
    net = rotrnn.torch.Module(rotrnn.LRU(D, 3))
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(3, D), torch.randn(1, D)])
    jagged = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(1, D)], layout=torch.jagged)
    for x, name in ((packed, "a PackedSequence"), (jagged, "a nested tensor")):
        for more in ({"lengths": [3, 1]}, {"cu_seqlens": [0, 3, 4]}, {"reset": torch.zeros(2, 3, dtype=torch.bool)}):
            message = f"^LRU.forward: got {next(iter(more))} with {name}, which has its own lengths"
            with pytest.raises(ValueError, match=message):
                net(x, **more)
    strided = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(1, D)])
    with pytest.raises(ValueError, match=r"^LRU.forward: x is a nested tensor with layout torch.strided, expected"):
        net(strided)
    for sizes in ((1, 3), (2, 7)):  # D steps in all, and others
        turned = torch.nested.nested_tensor([torch.randn(n, D) for n in sizes], layout=torch.jagged).transpose(1, 2)
        with pytest.raises(ValueError, match=r"^LRU.forward: x is a nested tensor with shape .*, expected .* ragged$"):
            net(turned)
    narrow = torch.nested.narrow(
        torch.randn(2, 5, D), 1, torch.tensor([0, 1]), torch.tensor([3, 2]), layout=torch.jagged
    )
    with pytest.raises(
        ValueError, match=r"^LRU.forward: x is a nested tensor with gaps between its sequences, expected"
    ):
        net(narrow)


def test_resets_and_pairs_of_models() -> None:
    settings = rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1)
    pooled, pairs = (
        rotrnn.torch.Module(rotrnn.build_model(settings, {"d_state": 3}, head=head, vocab=5, n_classes=3)).eval()
        for head in ("classifier", "retrieval")
    )
    tokens = torch.tensor([[1, 2, 3, 4, 0, 1]])
    with pytest.raises(ValueError, match=r"SequenceClassifier.forward: got reset, expected cu_seqlens"):
        pooled(tokens, reset=tokens == 3)
    with pytest.raises(ValueError, match=r"Retrieval.forward: cu_seqlens has 3 sequences, expected pairs"):
        pairs(tokens, cu_seqlens=[0, 2, 3, 6])
    both = torch.tensor([[[1, 2, 0, 0], [3, 4, 0, 1]]])
    torch.testing.assert_close(pairs(tokens, cu_seqlens=[0, 2, 6]), pairs(both, [[2, 4]]))
