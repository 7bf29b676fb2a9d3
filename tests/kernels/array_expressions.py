"""All expressions of the library's kernels as functions of one source."""

from ggsched_kernels import common_text
from ggsched_kernels.array_table import BY_TYPE, ELEMENTS

EXPRESSIONS = {
    op: {**(dict.fromkeys(ELEMENTS[op].types, ELEMENTS[op].text) if op in ELEMENTS else {}),
         **BY_TYPE.get(op, {})}
    for op in {**ELEMENTS, **BY_TYPE}
}  # fmt: skip


def expressions(dialect):
    """Return the source in a dialect."""
    text = [common_text(dialect, "arrays.h")]
    for op, types in EXPRESSIONS.items():
        for number, (dtype, expression) in enumerate(types.items()):
            first = f"CAT(V_, {dtype})"
            other = "float" if op == "where" else first
            made = "int" if op == "where" else first
            text.append(
                f"#undef A_T\n#define A_T {dtype}\n"
                f"FN float f_{op}_{number}({first} A, {other} B, {other} C, float P0, float P1, "
                f"float P2) {{ {made} made = ({expression}); return made; }}"
            )
    return "\n".join(text)
