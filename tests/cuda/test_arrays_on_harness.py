"""Arrays on a GPU in ops: CuPy's and other libraries'; what goes wrong says why."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_cupy
import rotrnn
from rotrnn.devices import cuda
from rotrnn.devices import device as devices
from rotrnn.ops.boundary import CheckedLengths
from strict import to_host

A, X = np.full(3, 0.5), np.arange(24.0).reshape(2, 4, 3)


@pytest.mark.whole
def test_an_op_runs_where_its_arrays_are() -> None:
    with fake_cupy.gpu():
        h = rotrnn.ops.diagonal_scan(fake_cupy.asarray(A), fake_cupy.asarray(X), lengths=np.array([4, 2]))
        assert type(h) is fake_cupy.ndarray
        np.testing.assert_array_equal(to_host(h), rotrnn.ops.diagonal_scan(A, X, lengths=np.array([4, 2])))


def test_the_example_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lengths = np.array([4, 2])
    names = {"a": A, "x": X, "lengths": lengths}
    with fake_cupy.gpu():
        exec(example, names)
    np.testing.assert_array_equal(to_host(names["h"]), rotrnn.ops.diagonal_scan(A, X, lengths=lengths))


def test_arrays_of_other_libraries_are_read_without_a_copy() -> None:
    with fake_cupy.gpu():
        a, x = fake_cupy.asarray(A), fake_cupy.asarray(X)
        assert cuda.device().view(fake_cupy.Tensor(x)) is x
        h = rotrnn.ops.diagonal_scan(fake_cupy.Tensor(a), fake_cupy.Tensor(x))
        np.testing.assert_array_equal(to_host(h), rotrnn.ops.diagonal_scan(A, X))
        with pytest.raises(TypeError, match="out is a Tensor, expected an array"):
            rotrnn.ops.diagonal_scan(a, x, out=fake_cupy.Tensor(x))


def between(x: Any) -> fake_cupy.ndarray:
    """x on the GPU, in a view that begins in the middle of a number: CuPy's views have no other layout."""
    size = x.itemsize
    room = np.zeros(x.nbytes + 2 * size, np.uint8)
    start = -room.ctypes.data % size + size // 2
    view = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return fake_cupy.ndarray(view)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_arrays_that_are_not_aligned_to_their_numbers_are_copied(dtype: Any) -> None:
    """A kernel reads a number at once, a complex one too, which is not possible at every address of a GPU."""
    a, x = A.astype(dtype), X.astype(dtype)
    with fake_cupy.gpu():
        h = rotrnn.ops.diagonal_scan(between(a), between(x))
        np.testing.assert_array_equal(to_host(h), rotrnn.ops.diagonal_scan(a, x))
        with pytest.raises(ValueError, match="diagonal_scan: out is not C-contiguous and aligned"):
            rotrnn.ops.diagonal_scan(fake_cupy.asarray(a), fake_cupy.asarray(x), out=between(x))


def test_arrays_of_two_devices_are_an_error() -> None:
    with (
        fake_cupy.gpu(),
        pytest.raises(TypeError, match=r"diagonal_scan: a is on the CPU \(ndarray\) and x on the GPU"),
    ):
        rotrnn.ops.diagonal_scan(A, fake_cupy.asarray(X))


def test_a_tensor_on_the_cpu_is_no_array_of_the_gpu() -> None:
    with fake_cupy.gpu(), pytest.raises(TypeError):
        rotrnn.ops.diagonal_scan(A, fake_cupy.Tensor(fake_cupy.asarray(X), device=1))


def test_out_of_memory_is_a_memory_error_and_the_next_call_works() -> None:
    a, x = np.full(3, 0.5), np.ones((1, 300, 3))
    with fake_cupy.gpu(bytes=8):
        there = fake_cupy.asarray(a), fake_cupy.asarray(x)
        with pytest.raises(MemoryError, match="Out of memory allocating"):
            rotrnn.ops.diagonal_scan(*there)
        fake_cupy.Failures.bytes = None
        np.testing.assert_allclose(
            to_host(rotrnn.ops.diagonal_scan(*there)), rotrnn.ops.diagonal_scan(a, x), rtol=1e-14
        )


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (0, "there is no CUDA GPU"),
        (RuntimeError("cudaErrorInsufficientDriver: too old"), "CUDA cannot be used: cudaErrorInsufficientDriver"),
    ],
)
def test_a_machine_without_a_gpu_says_why(gpus: object, message: str) -> None:
    with fake_cupy.gpu(gpus=gpus):
        assert not cuda.available()
        assert message in str(cuda.why_not())
        with pytest.raises(cuda.DeviceError, match=message):
            cuda.device()


def test_kernels_that_the_gpu_cannot_run_say_why() -> None:
    """Built by a CUDA newer than the driver, or for other GPUs (ROTRNN_GPUS): CuPy works, and no kernel would."""

    def connect(*_: object) -> None:
        raise RuntimeError("connect: cudaFuncGetAttributes: no kernel image is available for execution on the device")

    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["rotrnn._cuda"], "connect", connect)
        message = "rotrnn's CUDA kernels do not run on this GPU: connect: .*: no kernel image"
        assert re.match(message, str(cuda.why_not()))
        with pytest.raises(cuda.DeviceError, match=message):
            rotrnn.ops.exp(fake_cupy.asarray(X))


def test_threads_that_meet_the_gpu_first_have_one_device() -> None:
    """The second thread comes while the first connects the kernels."""
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        module: Any = sys.modules["rotrnn._cuda"]
        connect, found, others = module.connect, list[Any](), list[threading.Thread]()

        def connecting(*given: object) -> None:
            if not others:
                others.append(threading.Thread(target=lambda: found.append(cuda.device())))
                others[0].start()
                others[0].join(0.05)  # it waits for this thread; if it does not, it has its own device by now
            connect(*given)

        patch.setattr(module, "connect", connecting)
        found.append(cuda.device())
        others[0].join()
        assert found[0] is found[1]
        assert devices.device_of(fake_cupy.asarray(X)) is found[0]


def test_precision_is_that_of_both_modules() -> None:
    with fake_cupy.gpu():
        module = sys.modules["rotrnn._cuda"]
        with rotrnn.precision("tf32"):
            assert module.use_precision("tf32") == "tf32"
        assert module.use_precision("float32") == "float32"


def test_the_import_needs_neither_cupy_nor_the_module() -> None:
    script = (
        "import sys, rotrnn; assert not {'cupy', 'rotrnn._cuda'} & set(sys.modules); print(rotrnn.cuda.available())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout in ("True\n", "False\n")


def test_a_stream_that_somebody_captures_records_ops_or_says_why_not() -> None:
    """What an op launches is recorded, and repeated with other numbers; what needs the host is an error."""
    with fake_cupy.gpu():
        a, x, stream = fake_cupy.asarray(A), fake_cupy.asarray(X), fake_cupy.Stream(non_blocking=True)
        rotrnn.cuda.device()
        with stream:
            stream.begin_capture()
            h = rotrnn.ops.diagonal_scan(a, x)
            refused = "current stream is being captured, and an array of the host would be copied"
            with pytest.raises(cuda.DeviceError, match=refused):
                rotrnn.ops.diagonal_scan(a, x, lengths=np.array([4, 2]))
            with pytest.raises(cuda.DeviceError, match="being captured, and numbers on the GPU would be read"):
                cuda.device().to_host(h)
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                rotrnn.ops.embedding(x[..., 0].astype(np.int64), x[0])
            graph = stream.end_capture()
        x.set(-X)
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(to_host(h), rotrnn.ops.diagonal_scan(A, -X))


def test_lengths_have_a_copy_for_each_gpu_and_stream() -> None:
    """One of another GPU would be refused by kernels; another stream would not wait for it."""
    lengths = CheckedLengths.of([4, 2], 2, 4)
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        device = cuda.device()
        first = lengths.on(device)
        assert lengths.on(device) is first
        with fake_cupy.Stream(non_blocking=True):
            second = lengths.on(device)
        patch.setattr(sys.modules["cupy"].cuda.runtime, "getDevice", lambda: 1)
        third = lengths.on(device)
        assert len({id(one) for one in (first, second, third)}) == 3
        for one in (first, second, third):
            np.testing.assert_array_equal(to_host(one), [4, 2])
