"""Argument checks of every op before it calls a kernel: dtypes, shapes, layout, overflow, errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_NUMBERS, MOST_STEPS
from rotrnn._support.settings import Unfit, fit
from rotrnn._support.text import an
from rotrnn.devices.device import HOST, Device, device_of, is_array, is_plain, is_writeable
from rotrnn.devices.device import Array as Array
from rotrnn.devices.recording import RecordedLengths
from rotrnn.ops.declared import COMPLEX as COMPLEX
from rotrnn.ops.declared import REAL as REAL
from rotrnn.ops.declared import Declared, complex_of, pairs

if TYPE_CHECKING:
    from rotrnn._cpu import Kernels

INTEGERS = tuple(np.dtype(kind) for kind in ("i8", "i4", "i2", "i1", "u4", "u2", "u1"))
"""Integer dtypes that convert to int64 without loss."""
MOST_PLANS = 1000
"""Most plans of an op. A model's arrays have few shapes; other programs may always bring new shapes."""
_INTEGER = (int, np.integer)


class Along(TypedDict, total=False):
    """How a recurrence runs over time, for the overloads of the ops that return a state only when asked for it."""

    reverse: bool
    lengths: npt.ArrayLike | None


class Windowed(Along, total=False):
    """The same for recurrences that take a window."""

    window: int | None


class CheckedLengths(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """Read-only lengths (B,) int64, checked against the B and T in `fits`.

    `Boundary.lengths` creates them, and accepts checked lengths with the same B and T without a second check or copy.
    Results computed from them are plain arrays, and `fits` of a view is None.
    """

    fits: tuple[int, int] | None
    _copies: dict[tuple[str, Any], Array]

    @classmethod
    def of(cls, lengths: npt.ArrayLike, B: int, T: int) -> CheckedLengths:
        """Returns a copy, so that no output can overlap it, of lengths that are known to fit."""
        checked = np.array(lengths, np.int64).view(cls)
        checked.fits, checked._copies = (B, T), {}
        checked.flags.writeable = False
        return checked

    def __array_finalize__(self, source: Any) -> None:
        self.fits = None

    def on(self, device: Device) -> Array:
        """Returns these lengths on the CPU, and on another device a copy that is made once for each GPU and stream."""
        if device is HOST:
            return self
        place = device.name, device.here()
        if place not in self._copies:
            self._copies[place] = device.asarray(np.asarray(self))
        return self._copies[place]

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain


def on_host(op: str, name: str, value: npt.ArrayLike) -> Array:
    """Returns `value` as a NumPy array. A masked array is refused, because its mask would be ignored."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{op}: {name} is a masked array, expected an array without a mask, which would be ignored")
    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        if fields := getattr(value, "_fields", None):  # what another call returned
            what = f"expected an array, one of its parts {', '.join(fields)}"
            raise kind(f"{op}: {name} is {an(type(value).__name__)}, {what}") from error
        if isinstance(value, tuple):  # a state, whose arrays differ in shape
            raise kind(f"{op}: {name} is a tuple, expected an array") from error
        raise kind(f"{op}: {name} is {an(type(value).__name__)} that is no array: {error}") from error
    if found.dtype.kind == "O":
        way = {"collect_schema": "a DataFrame, by .collect()", "tocoo": "an array, by .toarray()"}
        for method, wanted in way.items():  # of polars' LazyFrame, of SciPy's sparse arrays
            if hasattr(value, method) and not hasattr(value, "__array__"):
                raise TypeError(f"{op}: {name} is {an(type(value).__name__)}, expected {wanted}")
    return found


def asked(first: Array, *more: Array | None) -> Any:
    """Returns a result, or a tuple of it and the requested others."""
    there = [one for one in more if one is not None]
    return (first, *there) if there else first


def rename(error: Exception, inner: str, outer: str) -> None:
    """Re-raises an error with the prefix `inner` of its message replaced by `outer`, so that a call names an argument
    that an inner op has refused."""
    message = str(error)
    if message.startswith(inner):
        raise type(error)(outer + message.removeprefix(inner)) from error


def only(lengths: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Returns these lengths with 0 for sequences that are not `kept`. The result is checked if `lengths` are."""
    if isinstance(lengths, RecordedLengths):
        return RecordedLengths(np.where(kept, lengths.there, 0), lengths.fits[1])  # type: ignore[return-value]
    rest = np.where(kept, lengths, 0)
    fits = lengths.fits if isinstance(lengths, CheckedLengths) else None
    return rest if fits is None else CheckedLengths.of(rest, *fits)


def longer(lengths: Any, times: int) -> Any:
    """Returns the lengths of checked sequences if each step becomes several; None for None."""
    if lengths is None:
        return None
    B, T = lengths.fits
    if isinstance(lengths, RecordedLengths):
        return RecordedLengths(times * lengths.there, times * T)
    return CheckedLengths.of(times * lengths, B, times * T)


def is_too_large(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Returns whether an array of this shape is too large to address, counting empty axes as size one."""
    numbers = math.prod(shape) or math.prod([max(size, 1) for size in shape])
    return numbers * dtype.itemsize > MOST_NUMBERS


def ready(*arrays: Any) -> bool:
    """Returns whether the CPU's kernels take arrays as they are: plain, not empty, of one real dtype, C-contiguous and
    aligned. Then only their shapes are left to check."""
    dtype = getattr(arrays[0], "dtype", None)
    if dtype not in REAL:
        return False
    for one in arrays:
        if type(one) is not np.ndarray or one.dtype is not dtype or not one.size:
            return False
        flags = one.flags
        if not (flags.c_contiguous and flags.aligned):
            return False
    return True


@functools.cache
def _letters(form: str) -> tuple[str, ...]:
    return tuple(form.split())


def _shape(axes: Sequence[str]) -> str:
    """Returns a shape as NumPy writes it, from the text of each axis: (B, T), and (B,) with one axis."""
    return f"({', '.join(axes)}{',' * (len(axes) == 1)})"


class Plan(NamedTuple):
    """Facts that follow from names, shapes and dtypes of a call's arrays, computed once for all such calls."""

    size: dict[str, int]
    source: dict[str, str]
    dtype: np.dtype[Any]
    mixed: bool
    """Whether the arrays have several dtypes."""
    calls: dict[str, Any]
    """Where the arguments of kernels come from (`Boundary._call`)."""


class Boundary:
    """The argument checks of one call: collects the arguments, binds dimension letters, and names the op in errors.

    >>> args = Boundary("diagonal_scan")
    >>> a = args.array("a", a, "N", "B T N")          # binds N, or B, T and N
    >>> x = args.array("x", x, "B T N")               # must agree with the bound sizes
    >>> a, x = args.common(a, x)                      # one dtype, C-contiguous, aligned

    `take` checks all arrays that csrc/kernels.list declares (`Declared`), and `run` calls a kernel with them:

    >>> args.take(SCAN, x=x, a=a, h0=h0, lengths=lengths)
    >>> h, hT = args.run("scan_forward", hT=True, reverse=False).values()

    All arrays of a call must be on one device: `device`, the device of the first array. `kernels` are its kernels, and
    `empty` and `zeros` return arrays on it.

    A failed check raises TypeError (dtype, device) or ValueError (everything else). The message names the op, the
    argument, its value and the expected value.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        self.size: dict[str, int] = {}
        self._source: dict[str, str] = {}
        self.device = HOST
        self._first: str | None = None
        self.given: dict[str, Any] = {}
        """The arrays that `take` has checked, by name."""
        self._derived: Mapping[str, Any] = {}

    def take(
        self, declared: Declared, part_of: str = "", /, *, lengths: npt.ArrayLike | None = None, **arrays: Any
    ) -> dict[str, Any]:
        """Checks arrays of an op, and lengths, against their declarations, and binds letters in this order. Returns
        them, and keeps them for `run`, in their common dtype like `common`. Optional arrays may be None.

        `part_of` names arrays that are parts of other arguments, for errors: "system: a c; saved: u"."""
        self.declared, ready = declared, True
        shapes: list[Any] = []
        for name, value in arrays.items():
            if value is None:
                shapes.append(None)
                continue
            if type(value) is np.ndarray and self.device is HOST:
                array: Array = value
                self._first = self._first or name
            else:
                array = self._on_device(name, value)
            if not array.dtype.isnative:
                array = array.astype(array.dtype.newbyteorder("="))
            arrays[name] = array
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned if self.device is HOST else is_plain(array)):
                ready = False
            shapes.append((array.shape, array.dtype))
        key = *arrays, *shapes, *self.size.items()
        plan = declared.plans.get(key)
        if plan is None:
            if len(declared.plans) >= MOST_PLANS:
                declared.plans.clear()
            plan = declared.plans[key] = self._plan(arrays, part_of)
        self.plan, self.size, self._source, self.given = plan, plan.size.copy(), plan.source.copy(), arrays
        if not ready or plan.mixed:
            for name, array in arrays.items():
                if array is not None:
                    paired = declared.forms[name].paired
                    arrays[name] = self.layout(array, complex_of(plan.dtype) if paired else plan.dtype)
        arrays["lengths"] = None if lengths is None else self.lengths(lengths)
        return arrays

    def _plan(self, arrays: dict[str, Any], part_of: str) -> Plan:
        """Checks arrays against their declarations. Returns the plan for their shapes and dtypes."""
        self._derived, dtypes = self.declared.derived, []
        wholes = [one.split(": ") for one in part_of.split("; ") if one]
        called = {part: f"{whole}.{part}" for whole, parts in wholes for part in parts.split()}
        for name, array in arrays.items():
            shapes, kinds, optional, paired = self.declared.forms[name]
            if array is not None or not optional:
                self.array(called.get(name, name), array, *shapes, kinds=kinds)
                dtypes.append(array.real.dtype if paired else array.dtype)
        dtype = np.result_type(*dtypes)
        return Plan(self.size, self._source, dtype, any(one != dtype for one in dtypes), {})

    def run(self, name: str, **more: Any) -> dict[str, Any]:
        """Calls a declared kernel with the taken arrays, the bound sizes, and `more`. Returns its results by name.

        A result is a new array unless `more` has an array for it, True (a new array) or False (none). A gradient that
        the list marks as optional is returned if its array was given, other optional results if `more` asks for them.
        """
        numbers, arrays, results = self.plan.calls.get(name) or self._call(name)
        call, given, made = numbers.copy(), self.given, {}
        for argument, own, paired in arrays:
            call[argument] = pairs(given[own]) if paired else given[own]
        for argument, own, there, shape, dtype, paired, large in results:
            result = more.pop(own, there)
            if result is True:
                if large:
                    self.check_size(own, shape, dtype)
                result = self.device.empty(shape, dtype)
            elif result is False:
                result = None
            made[own] = result
            call[argument] = pairs(result) if paired else result
        call.update(more)
        getattr(self.device.kernels, name)(**call)
        return made

    def _call(self, name: str) -> Any:
        """Returns, and keeps in the plan, where a kernel's arguments come from: numbers, arrays, and results."""
        kernel, given, size = self.declared.kernels[name], self.given, self.size
        numbers: dict[str, Any] = dict.fromkeys(kernel.arguments)
        numbers |= {argument: size.get(letter, letter) for argument, letter in kernel.sizes}
        ranks = {own: getattr(given[own], "ndim", 0) for _, own, _ in kernel.varying}
        numbers |= {flag: ranks[own] == rank for flag, own, rank in kernel.varying}
        results = []
        for argument, own, optional, paired, letters in kernel.results:
            like = given.get(own[1:]) if own[0] == "d" else None
            shape = tuple(map(self._size, letters)) if like is None else like.shape
            dtype = complex_of(self.plan.dtype) if paired else self.plan.dtype
            there, large = not optional or like is not None, None in shape or is_too_large(shape, dtype)
            results.append((argument, own, there, shape, dtype, paired, large))
        self.plan.calls[name] = numbers, [one for one in kernel.arrays if one[1] in given], results
        return self.plan.calls[name]

    def _size(self, letter: str) -> Any:
        """Returns the size of a letter that is bound, or that follows from a bound letter; else None."""
        if letter not in self.size and letter in self.declared.derived:
            base, size, how = self.declared.derived[letter]
            self.bind(letter, size(self.size[base] if base else 0), self._source.get(base, "") + how)
        return self.size.get(letter)

    @property
    def kernels(self) -> Kernels:
        """Kernels of the arrays' device."""
        return self.device.kernels

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Returns a new uninitialised array on the arrays' device."""
        return self.device.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Returns a new array of zeros on the arrays' device."""
        array = self.device.empty(shape, dtype)
        array[...] = 0
        return array

    def sizes(self, letters: str) -> dict[str, Any]:
        """Returns the sizes that the letters (such as "B T N") are bound to, as keyword arguments of a kernel."""
        return {letter: self.size[letter] for letter in _letters(letters)}

    def _on_device(self, name: str, value: Any) -> Array:
        """Returns `value` as an array on the call's device."""
        device = device_of(value)
        if self._first is None:
            self.device, self._first = device, name
        elif device is not self.device:
            raise TypeError(
                f"{self.op}: {name} is on {device.name} ({type(value).__name__}) and {self._first} on "
                f"{self.device.name}, expected arrays of one device"
            )
        if device is HOST:
            return on_host(self.op, name, value)
        foreign = type(value) is not device.array_type
        return device.view(value) if foreign else value

    def array(self, name: str, value: npt.ArrayLike, *forms: str, kinds: Sequence[np.dtype[Any]] = REAL) -> Array:
        """Returns `value` as an array whose dtype is one of `kinds` and whose shape matches one of `forms` (such as
        "B T N"; one per rank)."""
        array = self.any_array(name, value)
        if array.dtype not in kinds:
            array = self._native(name, array, kinds)
        shape = array.shape
        rank = len(shape)
        for form in forms:
            letters = _letters(form)
            if len(letters) == rank:
                break
        else:
            expected = " or ".join(_shape(_letters(form)) for form in forms)
            raise ValueError(f"{self.op}: {name} has shape {shape}, expected {expected}")
        sizes = self.size
        axes: Iterable[tuple[str, int]] = zip(letters, shape, strict=True)
        if self._derived:
            axes = sorted(axes, key=lambda axis: axis[0] in self._derived)
        for letter, size in axes:
            known = sizes.get(letter)
            if known is None and letter in self._derived:
                known = self._size(letter)
            if known is None:
                sizes[letter], self._source[letter] = size, name
            elif known != size:
                self._refuse_shape(name, shape, form, letter, forms)
        if not array.size or array.nbytes > MOST_NUMBERS:
            self.check_size(name, shape, array.dtype)
        return array

    def _native(self, name: str, array: Array, kinds: Sequence[np.dtype[Any]]) -> Array:
        """Returns an array of another byte order in the machine's; raises TypeError if its dtype is not of `kinds`."""
        native = array.dtype.newbyteorder("=")
        if native not in kinds:
            expected = " or ".join(str(kind) for kind in kinds)
            if array.dtype.kind == "O" and not array.ndim:  # NumPy cannot read it as an array
                thing = array.item()
                got = "None" if thing is None else an(type(thing).__name__)
                raise TypeError(f"{self.op}: {name} is {got}, expected an array of {expected}")
            raise TypeError(f"{self.op}: {name} has dtype {array.dtype}, expected {expected}")
        return array.astype(native, copy=False)

    def _refuse_shape(self, name: str, shape: tuple[int, ...], form: str, letter: str, forms: Sequence[str]) -> None:
        known = [one for one in self.size if one == letter or self._source[one] != name]  # others are the array's own

        def wanted(form: str) -> str:
            letters = _letters(form)
            return _shape([f"{one}={self.size[one]}" if one in known and not one.isdigit() else one for one in letters])

        source = f", with {letter} from {self._source[letter]}" if self._source[letter] else ""
        others = "".join(f"; or {wanted(one)}" for one in forms if one != form)
        raise ValueError(f"{self.op}: {name} has shape {shape}, expected {wanted(form)}{source}{others}")

    def any_array(self, name: str, value: npt.ArrayLike) -> Array:
        """Returns `value` as an array on the call's device, without other checks."""
        if type(value) is np.ndarray and self.device is HOST:
            self._first = self._first or name
            return value
        return self._on_device(name, value)

    def optional(
        self, name: str, value: npt.ArrayLike | None, *forms: str, kinds: Sequence[np.dtype[Any]] = REAL
    ) -> Array | None:
        """Like `array`, but None is passed through."""
        return None if value is None else self.array(name, value, *forms, kinds=kinds)

    def bind(self, letter: str, size: int, source: str) -> None:
        """Binds `letter` to a size before any array has it. Errors name `source` as the origin of the size."""
        self.size[letter], self._source[letter] = size, source

    def common(self, *arrays: Array | None) -> list[Any]:
        """Returns the arrays in their common dtype (NumPy's promotion), C-contiguous and aligned; copies only where
        needed."""
        dtype: Any = None
        for array in arrays:
            if array is None or array.dtype is dtype:
                continue
            if dtype is not None:
                dtype = np.result_type(*[one.dtype for one in arrays if one is not None])
                break
            dtype = array.dtype
        return [None if array is None else self.layout(array, dtype) for array in arrays]

    def layout(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """Returns `array` in `dtype`, C-contiguous and aligned; copies only if it is not."""
        flags = array.flags
        plain = flags.c_contiguous and flags.aligned if self.device is HOST else is_plain(array)
        if plain and array.dtype == dtype:
            return array
        return np.require(array, dtype, ["C", "A"]) if self.device is HOST else array.astype(dtype, order="C")

    def check_size(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Raises ValueError if an array of this shape is too large to address.

        This ensures that no product of sizes overflows in C: the workspace of a kernel is at most a few thousand times
        the size of an array.
        """
        if is_too_large(shape, dtype):
            raise ValueError(
                f"{self.op}: {name} has shape {tuple(shape)} and dtype {dtype}, which is too large to address"
            )

    def lengths(self, lengths: npt.ArrayLike | None) -> npt.NDArray[np.int64] | None:
        """Returns the number of valid steps of each sequence: None, or B integers in [0, T], checked once
        (`CheckedLengths`)."""
        if lengths is None:
            return None
        if isinstance(lengths, CheckedLengths | RecordedLengths) and lengths.fits == (self.size["B"], self.size["T"]):
            return lengths  # type: ignore[return-value]
        return self.check_lengths(lengths)

    def check_lengths(self, lengths: npt.ArrayLike) -> CheckedLengths:
        """Checks lengths that are not yet checked; see `lengths`."""
        B, T = self.size["B"], self.size["T"]
        return CheckedLengths.of(self.counts("lengths", lengths, T, f"T={T}"), B, T)

    def positions(self, name: str, value: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns the number of steps so far, (B,) nonnegative integers; on the CPU, like lengths."""
        return self.counts(name, value, MOST_STEPS, str(MOST_STEPS))

    def counts(self, name: str, value: npt.ArrayLike, most: int, title: str) -> npt.NDArray[np.int64]:
        """Returns B integers from 0 to `most`, which messages call `title`, as a new array on the CPU.

        The copy is checked and not the argument, because another thread may write to the argument.
        """
        given = on_host(self.op, name, value)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"{self.op}: {name} has dtype {given.dtype}, expected an integer dtype")
        if given.shape != (self.size["B"],):
            raise ValueError(f"{self.op}: {name} has shape {given.shape}, expected (B={self.size['B']},)")
        array = given.astype(np.int64)
        bad = array.view(np.uint64) > most  # of a negative number this is 2^63 or more
        if bad.any():
            at = int(np.argmax(bad))
            got = array.astype(given.dtype)[at]
            raise ValueError(f"{self.op}: {name}[{at}] is {got}, expected an integer from 0 to {title}")
        return array

    def integers(self, name: str, value: npt.ArrayLike, *forms: str) -> Array:
        """Returns integers that a kernel indexes by, as a new int64 array on the call's device.

        It is a copy, because a kernel runs while other threads do, and they may write to the argument: check the values
        of the copy.
        """
        return self.array(name, value, *forms, kinds=INTEGERS).astype(np.int64, order="C")

    # ---- settings ----

    def flag(self, name: str, value: bool) -> bool:
        """Returns a setting that is True or False."""
        if value is True or value is False:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        raise ValueError(f"{self.op}: {name} is {value!r}, expected True or False")

    def integer(self, name: str, value: int, least: int = 0, most: int | None = None) -> int:
        """Returns a setting that is an integer of at least `least`, and of at most `most` if given."""
        whole = type(value) is int or (isinstance(value, _INTEGER) and not isinstance(value, bool))
        if not whole or value < least or (most is not None and value > most):
            span = f"from {least}" if most is None else f"from {least} to {most}"
            expected = "a positive integer" if (least, most) == (1, None) else f"an integer {span}"
            raise ValueError(f"{self.op}: {name} is {value!r}, expected {expected}")
        return int(value)

    def number(self, name: str, value: float, *, positive: bool = False) -> float:
        """Returns a setting that is a finite number, nonnegative or `positive`."""
        try:
            plain: float = value if type(value) is float else fit(value, float)
        except Unfit:
            plain = math.nan
        if not 0 <= plain < math.inf or (positive and not plain):
            expected = "a positive number" if positive else "a nonnegative number"
            raise ValueError(f"{self.op}: {name} is {value!r}, expected {expected}")
        return plain

    def choice(self, name: str, value: str, known: Iterable[str]) -> str:
        """Returns a setting that is one of the `known` names."""
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{self.op}: {name} is {value!r:.80}, expected one of {', '.join(known)}")
        return value

    def real_dtype(self, name: str, value: npt.DTypeLike) -> np.dtype[Any]:
        """Returns a setting that is the dtype float32 or float64."""
        try:
            dtype = None if value is None else np.dtype(value)  # NumPy takes None for float64
        except TypeError:
            dtype = None
        if dtype is None or dtype not in REAL:
            expected = " or ".join(map(str, REAL))
            raise TypeError(f"{self.op}: {name} is {value!r:.80}, expected {expected}")
        return dtype

    def one_of(self, name: str, value: Any, *kinds: type) -> None:
        """Checks that an argument has one of the types, such as the type of `saved`."""
        if not isinstance(value, kinds):
            expected = " or ".join(an(kind.__name__) for kind in kinds)
            raise TypeError(f"{self.op}: {name} is {an(type(value).__name__)}, expected {expected}")

    def window(self, window: int | None) -> int | None:
        """Returns the number of steps of a window: None, or an integer of at least 1. Binds L-1, the number
        of steps in the window before the current one."""
        if window is None:
            return None
        if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
            raise ValueError(f"{self.op}: window={window!r}, expected a positive integer or None")
        self.bind("L-1", int(window) - 1, f"window={window}")
        return int(window)

    def into(self, out: Array, like: str, *inputs: Any) -> Array:
        """Returns for `run` a caller's `out`, which must fit like a taken array, and overlap no input."""
        array = self.given[like]
        return self.out("out", out, array.shape, array.dtype, *inputs, *self.given.values())

    def out(self, name: str, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], *inputs: Any) -> Array:
        """Returns a new array for a result, or the caller's `out` if it has the right shape and dtype, is writeable and
        overlaps no input."""
        self.check_size(name, shape, dtype)
        if out is None:
            return self.empty(shape, dtype)
        if device_of(out) is not self.device:
            raise TypeError(
                f"{self.op}: {name} is on {device_of(out).name} and {self._first} on {self.device.name}, expected "
                "arrays of one device"
            )
        if not is_array(out):
            raise TypeError(f"{self.op}: {name} is {an(type(out).__name__)}, expected an array")
        if out.dtype != dtype:
            raise TypeError(f"{self.op}: {name} has dtype {out.dtype}, expected {dtype}")
        if out.shape != shape:
            raise ValueError(f"{self.op}: {name} has shape {out.shape}, expected {shape}")
        if not is_writeable(out):
            raise ValueError(f"{self.op}: {name} is read-only, expected a writeable array")
        if not is_plain(out):
            raise ValueError(f"{self.op}: {name} is not C-contiguous and aligned, expected an array that is")
        if any(is_array(other) and np.may_share_memory(out, other) for other in inputs):
            raise ValueError(f"{self.op}: {name} overlaps an input, expected separate memory")
        return out
