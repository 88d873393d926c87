"""Generates C and Python files from csrc/kernels.list; run by setup.py, or by hand:

python csrc/generate.py FOLDER       # kernels.h, list.c, _cpu.pyi

kernels.h: for each kernel a struct NAME_args, the prototype ``int K(NAME)(const NAME_args *)`` and the parameters into
which the macro KERNEL(NAME) unpacks it; lists of names by kind (ROT_LANE_KERNELS(X), ...); enumerations and constants.
list.c: for the extension module, each argument's name, kind, offset in the struct and size. _cpu.pyi: the stub.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

LIST = Path(__file__).with_name("kernels.list")
KINDS = ("lane", "real", "once")
RANGED = ("int64", "float64")
SIZE = ("0", "MOST_NUMBERS")  # the range of integers in shapes
C_TYPES = {"int64": "int64_t", "uint8": "uint8_t", "uint16": "uint16_t", "float64": "double"}
ARRAY = re.compile(r"(\w+)(\?)?(?::(int64|uint8|uint16|float64))?\[([^]]*)\](?:\{([^}]*)\.\.([^}]*)\})?")
PRODUCT = re.compile(r"(?:[A-Za-z_]\w*|\))\s*\*\s*[A-Za-z_(]")  # a product of two integers may overflow
DEFINITION = re.compile(r"^KERNEL\((\w+)\)", re.MULTILINE)
COMMA = re.compile(r",(?![^()]*\))")  # between parts of a shape, not between a function's arguments
STUB_HEAD = '''"""The C kernels (made from csrc/kernels.list); shapes and dtypes are described there.

A call whose arguments are missing, unknown, of another dtype or of another size raises TypeError or ValueError.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Uint8 = npt.NDArray[np.uint8]
Uint16 = npt.NDArray[np.uint16]
Float64 = npt.NDArray[np.float64]

SIMD_AVAILABLE: tuple[str, ...]
BF16_BY_AVAILABLE: tuple[str, ...]
LINES: tuple[str, ...]
"""The instructions that a line of the C library may have (`Stream`)."""
OPENMP: int
COMPILER: str
KEEPS_MEMORY: int
LIST: Mapping[str, tuple[bool, tuple[tuple[str, str, str, bool, bool], ...]]]
"""For each kernel, whether it takes complex dtypes, and its arguments: kind, name, shape, whether an array has the
call's dtype, whether it may be None."""

def empty(shape: tuple[int, ...], dtype: npt.DTypeLike, /) -> npt.NDArray[Any]: ...
def release_memory() -> int: ...
def simd() -> str: ...
def use_simd(name: str, /) -> str: ...
def precision() -> str: ...
def use_precision(name: str, /) -> str: ...
def bf16_by() -> str: ...
def use_bf16_by(name: str, /) -> str: ...
def use_float_mode(mode: int | None, /) -> int: ...
def threads() -> int: ...
def use_threads(count: int, /) -> int: ...

class Stream:
    def __new__(cls, facts: str, arrays: dict[str, Numbers], batch: int, half: bool, /) -> Stream: ...
    def push(self, x: Numbers, n: int, lengths: Int64 | None, last: bool, y: Numbers, /) -> bool: ...
    def reset(self, sequence: int | None, /) -> None: ...
    def state(self, sequence: int | None, /) -> bytes: ...
    def restore(self, state: bytes, sequence: int | None, /) -> None: ...
    def steps(self) -> list[int]: ...
    def unsettled(self) -> list[int]: ...

'''
STUB_TYPES = {"": "Numbers", "int64": "Int64", "uint8": "Uint8", "uint16": "Uint16", "float64": "Float64"}


class ListError(Exception):
    """A line of kernels.list that cannot be read."""


@dataclass(frozen=True)
class Argument:
    """One argument: an array (`shape` is a list of C expressions) or a number (`shape` is None)."""

    name: str
    kind: str  # "read", "write", "int" or "float"
    dtype: str = ""  # of an array: "int64", "uint8", "uint16", "float64", or "" for the dtype of the call
    optional: bool = False
    shape: tuple[str, ...] | None = None
    range: tuple[str, str] | None = None  # the least and the largest number allowed, C expressions
    path: str = ""  # its member expression in the kernel's struct

    def declaration(self, lane: str) -> str:
        """The declaration as a struct field, or as a parameter without restrict."""
        if self.shape is None:
            return f"{'int64_t' if self.kind == 'int' else 'double'} {self.name}"
        const = "const " if self.kind == "read" else ""
        return f"{const}{C_TYPES.get(self.dtype, lane)} *{self.name}"

    def parameter(self, lane: str) -> str:
        return self.declaration(lane).replace("*", "*restrict ")

    @property
    def annotation(self) -> str:
        if self.shape is None:
            return self.kind
        return STUB_TYPES[self.dtype] + " | None" * self.optional


@dataclass
class Entry:
    """A kernel or a group."""

    what: str
    name: str
    kind: str
    arguments: list[Argument] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    groups: dict[str, Entry] = field(default_factory=dict)

    def every(self) -> list[Argument]:
        """All arguments, arguments of the groups first."""
        of_groups = [
            replace(one, path=f"{name}.{one.name}") for name, group in self.groups.items() for one in group.arguments
        ]
        return of_groups + [replace(one, path=one.name) for one in self.arguments]

    def every_condition(self) -> list[str]:
        """All conditions, conditions of the groups first."""
        return [*(one for group in self.groups.values() for one in group.conditions), *self.conditions]


@dataclass
class Listing:
    """The contents of kernels.list."""

    enums: dict[str, list[str]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    groups: dict[str, Entry] = field(default_factory=dict)
    kernels: list[Entry] = field(default_factory=list)


def _arrays(kind: str, text: str) -> list[Argument]:
    if ARRAY.sub("", text).strip():
        raise ListError(f"expected NAME[SHAPE] ..., got {text!r}")
    arrays = []
    for name, optional, dtype, shape, low, high in ARRAY.findall(text):
        parts = tuple(part.strip() for part in COMMA.split(shape) if part)
        if high and dtype not in RANGED:
            raise ListError(f"{name}: a range needs one of the dtypes {', '.join(RANGED)}")
        arrays.append(Argument(name, kind, dtype, bool(optional), parts, (low, high) if high else None))
    return arrays


def read(text: str) -> Listing:
    """Parses text in the format of kernels.list."""
    listing = Listing()
    entry: Entry | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        word, _, rest = line.partition(" ")
        try:
            if word == "enum":
                name, *values = rest.split()
                listing.enums[name] = values
            elif word == "const":
                name, value = rest.split()
                listing.constants[name] = int(value)
            elif word in ("kernel", "group") and not raw.startswith(" "):
                name, kind = rest.split()
                if kind not in KINDS or name in listing.groups or name in [one.name for one in listing.kernels]:
                    raise ListError(f"{name}: expected a new name, and one of {', '.join(KINDS)}")
                entry = Entry(word, name, kind)
                if word == "group":
                    listing.groups[name] = entry
                else:
                    listing.kernels.append(entry)
            elif entry is None:
                raise ListError("expected a kernel or a group first")
            elif word == "group":
                entry.groups |= {
                    name: listing.groups[group] for name, group in (one.split(":") for one in rest.split())
                }
            elif word in ("read", "write"):
                entry.arguments += _arrays(word, rest)
            elif word in ("int", "float"):
                entry.arguments += [Argument(name, word) for name in rest.split()]
            elif word == "flag":
                entry.arguments += [Argument(name, "int", range=("0", "1")) for name in rest.split()]
            elif word == "choice":
                for name, _, enum in (one.partition(":") for one in rest.split()):
                    entry.arguments.append(Argument(name, "int", range=("0", str(len(listing.enums[enum]) - 1))))
            elif word == "where":
                entry.conditions += [one.strip() for one in rest.split(";")]
            else:
                raise ListError(f"{word}: expected kernel, group, read, write, int, flag, choice, float or where")
        except (ListError, ValueError, KeyError) as error:
            raise ListError(f"{LIST.name}, line {number}: {error}") from None
    for kernel in listing.kernels:
        names = [one.name for one in kernel.every()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ListError(f"{LIST.name}: {kernel.name} has {', '.join(twice)} twice")
        expressions = [part for one in kernel.every() for part in (*(one.shape or ()), *(one.range or ()))]
        for part in (*expressions, *kernel.every_condition()):
            if PRODUCT.search(part):
                raise ListError(f"{LIST.name}: {kernel.name} has {part}, expected parts of a shape, or a function")
    return listing


def lane_files(folder: Path = LIST.parent) -> list[str]:
    """The names of the files of csrc that define a kernel of kind lane; they are compiled for complex dtypes, too.

    Raises ListError for a kernel of the list that is not defined exactly once.
    """
    files: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*.c")):
        for name in DEFINITION.findall(path.read_text("utf-8")):
            files.setdefault(name, []).append(path.name)
    kernels = read((folder / LIST.name).read_text("utf-8")).kernels
    for kernel in kernels:
        found = files.get(kernel.name, [])
        if len(found) != 1:
            raise ListError(
                f"{LIST.name}: {kernel.name} is defined in {' and '.join(found) or 'no file'}, expected one "
                f"KERNEL({kernel.name}) there"
            )
    return sorted({files[kernel.name][0] for kernel in kernels if kernel.kind == "lane"})


def _struct(entry: Entry) -> str:
    lane = "lane" if entry.kind == "lane" else "real"
    fields = [f"{group.name} {name};" for name, group in entry.groups.items()]
    fields += [f"{one.declaration(lane)};" for one in entry.arguments]
    name = entry.name if entry.what == "group" else f"{entry.name}_args"
    return "\n".join(["typedef struct {", *(f"    {one}" for one in fields), f"}} {name};"])


def _kernel(entry: Entry) -> str:
    lane = "lane" if entry.kind == "lane" else "real"
    parameters = [f"const {group.name} *restrict {name}" for name, group in entry.groups.items()]
    parameters += [one.parameter(lane) for one in entry.arguments]
    values = [f"&args->{name}" for name in entry.groups] + [f"args->{one.name}" for one in entry.arguments]
    return "\n".join(
        [
            _struct(entry),
            f"#define ROT_PARAMETERS_{entry.name} {', '.join(parameters)}",
            f"#define ROT_VALUES_{entry.name} {', '.join(values)}",
            f"int K({entry.name})(const {entry.name}_args *args);",
        ]
    )


def header(listing: Listing) -> str:
    """The text of kernels.h."""
    parts = [
        "/* Made from csrc/kernels.list by csrc/generate.py: change those. */",
        "#ifndef ROT_KERNELS_H\n#define ROT_KERNELS_H",
        '#include "real.h"',
        "/* The definition of a kernel: KERNEL(name) { ... } has its arguments by name, as kernels.list has them. */\n"
        "#define KERNEL(name)                                              \\\n"
        "    static inline int body_##name(ROT_PARAMETERS_##name);         \\\n"
        "    int K(name)(const name##_args *args) {                        \\\n"
        "        return body_##name(ROT_VALUES_##name);                    \\\n"
        "    }                                                             \\\n"
        "    static inline int body_##name(ROT_PARAMETERS_##name)",
    ]
    for name, values in listing.enums.items():
        parts.append(f"enum {{ {', '.join(f'{name}_{value.upper()}' for value in values)} }};")
        parts.append(f'#define {name}_NAMES "{" ".join(values)}"')
    for name, value in listing.constants.items():
        parts.append(f"enum {{ {name} = {value} }};" if value < 2**31 else f"#define {name} INT64_C({value})")
    for kind in KINDS:
        names = " ".join(f"X({one.name})" for one in listing.kernels if one.kind == kind)
        parts.append(f"#define ROT_{kind.upper()}_KERNELS(X) {names}")
    places = ", ".join(f"PLACE_{one.name}" for one in listing.kernels)
    parts.append(f"enum {{ {places}, ROT_KERNELS }};")
    parts.append('#ifdef __cplusplus\nextern "C" {\n#endif')
    for kind in KINDS:
        here = [_struct(one) for one in listing.groups.values() if one.kind == kind]
        here += [_kernel(one) for one in listing.kernels if one.kind == kind]
        if kind == "real":
            here = ["#if !ROT_COMPLEX", *here, "#endif"]
        parts += here
    parts.append("#ifdef __cplusplus\n}\n#endif")
    return "\n\n".join([*parts, "#endif"]) + "\n"


def _range_of(argument: Argument, arrays: list[Argument]) -> tuple[str, str]:
    """The range of an integer without a given range: the range of sizes if it is in a shape."""
    shapes = " ".join(", ".join(one.shape or ()) for one in arrays)
    return SIZE if re.search(rf"\b{argument.name}\b", shapes) else ("INT64_MIN", "INT64_MAX")


def _function(kernel: Entry, name: str, kind: str, parameters: str, lines: list[str]) -> str:
    """A C function of `parameters` and of a kernel's arguments. In its lines a number has its value, and an array is
    true if it is given."""
    used = " ".join(re.sub(r'"[^"]*"', "", line) for line in lines)
    body = ["(void)memory;"]
    for one in kernel.every():
        if re.search(rf"(?<![.\w]){one.name}\b", used):
            number = {"int": "int64_t", "float": "double"}.get(one.kind, "bool")
            value = f"args->{one.path}" + " != NULL" * (one.shape is not None)
            body.append(f"const {number} {one.name} = {value};")
    if len(body) > 1:
        body.insert(1, f"const {kernel.name}_args *const args = memory;")
    head = f"static {kind} {name}({parameters}const void *memory) {{"
    return "\n".join([head, *(f"    {line}" for line in body + lines), "}"])


def table(listing: Listing) -> str:
    """The text of list.c."""
    parts = [
        "/* Made from csrc/kernels.list by csrc/generate.py: change those. */",
        '#include "entries.h"\n#include "extents.h"\n#include "kernels.h"',
    ]
    rows, structs = [], []
    for kernel in listing.kernels:
        arguments = kernel.every()
        arrays = [one for one in arguments if one.shape is not None]
        ranged = [one for one in arrays if one.range]
        sizes = [f"rot_sizes[{i}] = EXTENT({', '.join(one.shape or ()) or '1'});" for i, one in enumerate(arrays)]
        ranges = [f"rot_ranges[{i}] = (rot_range){{{', '.join(one.range or ())}}};" for i, one in enumerate(ranged)]
        broken = [f'if (!({one})) return "{one}";' for one in kernel.every_condition()]
        name, lines = kernel.name, []
        functions = {
            f"sizes_{name}": ("void", "int64_t *rot_sizes, ", sizes),
            f"ranges_{name}": ("void", "rot_range *rot_ranges, ", ranges),
            f"broken_{name}": ("const char *", "", [*broken, "return NULL;"] * bool(broken)),
        }
        parts += [_function(kernel, of, *what) for of, what in functions.items() if what[-1]]
        for one in arguments:
            kind = {"read": "ROT_READ", "write": "ROT_WRITE", "int": "ROT_INT", "float": "ROT_FLOAT"}[one.kind]
            dtype = f"ROT_{one.dtype.upper()}" if one.dtype else "ROT_CALLS"
            shape = ", ".join(one.shape) if one.shape is not None else ""
            low, high = one.range if one.kind == "int" and one.range else _range_of(one, arrays)
            place = f"offsetof({name}_args, {one.path})"
            optional, has_range = str(one.optional).lower(), str(one in ranged).lower()
            limits = f"{low}, {high}, {optional}, {has_range}"
            lines.append(f'    {{"{one.name}", "{shape}", {place}, {kind}, {dtype}, {limits}}},')
        parts.append(f"static const rot_argument arguments_{name}[] = {{\n" + "\n".join(lines) + "\n};")
        names = ", ".join(of if what[-1] else "NULL" for of, what in functions.items())
        rest = f"{len(arguments)}, {names}, {str(kernel.kind == 'lane').lower()}"
        rows.append(f'    {{"{name}", arguments_{name}, {rest}}},')
        structs.append(f"    {name}_args {name};")
    parts.append("const rot_kernel ROT_LIST[ROT_KERNELS] = {\n" + "\n".join(rows) + "\n};")
    parts.append("union any_args {\n" + "\n".join(structs) + "\n};")
    most = max(len(one.every()) for one in listing.kernels)
    parts.append(
        '_Static_assert(sizeof(union any_args) <= ROT_ARGS_BYTES, "ROT_ARGS_BYTES of entries.h is too small");\n'
        f'_Static_assert({most} <= ROT_MOST_ARGUMENTS, "ROT_MOST_ARGUMENTS of entries.h is too small");'
    )
    numbers = []
    for name, values in listing.enums.items():
        numbers += [f'    {{"{name}", "{value}", {name}_{value.upper()}}},' for value in values]
    numbers += [f'    {{"{name}", NULL, {name}}},' for name in listing.constants]
    parts.append("const rot_number ROT_NUMBERS[] = {\n" + "\n".join(numbers) + "\n    {NULL, NULL, 0},\n};")
    return "\n\n".join(parts) + "\n"


def stub(listing: Listing) -> str:
    """The text of _cpu.pyi."""
    lines = [f"{name}: Mapping[str, int]" for name in listing.enums]
    lines += [f"{name}: int" for name in listing.constants]
    lines += ["", "class Kernels(Protocol):", '    """The kernels of a device."""', ""]
    for kernel in listing.kernels:
        lines.append(f"    def {kernel.name}(")
        lines += ["        self,", "        *,"]
        lines += [f"        {one.name}: {one.annotation}," for one in kernel.every()]
        lines.append("    ) -> None: ...")
    lines += ["", "kernels: Kernels"]
    return STUB_HEAD + "\n".join(lines) + "\n"


def generate(folder: Path, stub_folder: Path | None = None) -> None:
    """Writes the files to `folder`, and the stub to `stub_folder`; files that would not change are not rewritten."""
    listing = read(LIST.read_text("utf-8"))
    made = {folder / "kernels.h": header(listing), folder / "list.c": table(listing)}
    made[(stub_folder or folder) / "_cpu.pyi"] = stub(listing)
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write them")
    generate(parser.parse_args().folder)
