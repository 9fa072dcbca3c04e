"""Dtypes: the closed list of logical element types, under torch's names. They import no torch."""

from unikv.errors import SpecError

DTYPES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
"""Bytes an element of each logical dtype."""


def check_dtype(dtype: object) -> None:
    """Raise `SpecError` unless ``dtype`` is a name of the list."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SpecError(f"dtype {dtype!r:.80}: want a name, one of {', '.join(DTYPES)}")


def name_dtype(dtype: object) -> str:
    """Return the name of a dtype given by name or as torch's own, ``torch.bfloat16``.

    Raises:
        SpecError: it is none of the list.
    """
    name = str(dtype).removeprefix("torch.")
    check_dtype(name)
    return name
