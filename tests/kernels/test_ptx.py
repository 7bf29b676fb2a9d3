"""The reader of PTX finds what is reached before a wait, in kernels small enough to see it."""

import pytest

from tests.kernels.ptx import address_of, before_wait, blocks_of, kernels_of, parameters_behind

WAIT = "griddepcontrol.wait;"
LOAD = "ld.global.f32 %f1, [%rd1];"
STORE = "st.global.f32 [%rd1], %f1;"


def early(*lines):
    """Return the ops of accesses that a kernel of these lines reaches without a wait."""
    text = "\n".join([".visible .entry k(\n.param .u64 k_param_0\n)\n.maxntid 288\n{", *lines, "}"])
    (found,) = kernels_of(text).values()
    return [s.op for s in before_wait(found) if s.is_access]


def test_in_a_row():
    assert early(WAIT, LOAD, STORE, "ret;") == []
    assert early(LOAD, WAIT, STORE, "ret;") == ["ld.global.f32"]
    assert early(LOAD, STORE, "ret;") == ["ld.global.f32", "st.global.f32"]
    assert early(f"// {WAIT}", LOAD, "ret;") == ["ld.global.f32"]


def test_kernels_side_by_side():
    text = ".entry a(.param .u64 x) { { ret; }\n} // }\n.entry b() .maxntid 32 {\n st.f32 {%f1}; }"
    found = kernels_of(text)
    assert list(found) == ["a", "b"]
    assert found["a"].endswith("}\n}")
    assert "st.f32" in found["b"]


def test_what_is_an_access():
    own = (
        "ld.param.u64 %rd1, [k_param_0];",
        "st.shared.f32 [%r1], %f1;",
        "ld.local.f32 %f1, [%rd1];",
    )
    assert early(*own, "cp.async.wait_group 0;", "mbarrier.init.shared.b64 [%r1], 1;") == []
    others = (
        "ld.f32 %f1, [%rd1];", "atom.global.add.u32 %r1, [%rd1], 1;",
        "red.global.add.u32 [%rd1], 1;",
        "prefetch.global.L2 [%rd1];",
        "cp.async.bulk.shared::cluster.global.x [%r1], [%rd1], 16, [%r2];",
        "cp.async.cg.shared.global [%r1], [%rd1], 16;", "ld.volatile.global.u32 %r1, [%rd1];",
        "ld.weak.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
    )  # fmt: skip
    assert len(early(*others)) == len(others)
    assert early("@%p1 ld.global.f32 %f1, [%rd1];") == ["ld.global.f32"]


def test_one_way_waits_and_the_other_does_not():
    ways = "@%p1 bra $L_1;", WAIT, "$L_1:", LOAD, "ret;"
    assert early(*ways) == ["ld.global.f32"]
    both = "@%p1 bra $L_1;", WAIT, "bra.uni $L_2;", "$L_1:", WAIT, "$L_2:", LOAD, "ret;"
    assert early(*both) == []
    ends = "@%p1 bra $L_1;", "ret;", "$L_1:", WAIT, LOAD, "ret;"
    assert early(*ends) == []
    may_end = "@%p1 ret;", LOAD, WAIT, "ret;"
    assert early(*may_end) == ["ld.global.f32"]


def test_what_nobody_reaches_counts_for_nothing():
    assert early(WAIT, "bra.uni $L_2;", "$L_1:", LOAD, "$L_2:", "ret;") == []
    assert early("ret;", LOAD) == []
    assert early("bra.uni $L_1;", LOAD, "$L_1:", WAIT, STORE) == []


def test_a_wait_that_may_not_happen_is_none():
    assert early(f"@%p1 {WAIT}", LOAD, "ret;") == ["ld.global.f32"]
    assert early(f"@!%p1 {WAIT}", LOAD, "ret;") == ["ld.global.f32"]


def test_loops():
    """The first time round there was no wait yet."""
    assert early("$L_1:", LOAD, WAIT, "@%p1 bra $L_1;", "ret;") == ["ld.global.f32"]
    assert early("$L_1:", "add.s32 %r1, %r1, 1;", "@%p1 bra $L_1;", WAIT, LOAD, "ret;") == []
    assert early("bra.uni $L_2;", "$L_1:", LOAD, "$L_2:", "@%p1 bra $L_1;", WAIT) == [
        "ld.global.f32"
    ]


def test_scopes_and_labels_side_by_side():
    spin = "{\n.reg .pred open;\nCLOSED1:\nmbarrier.try_wait.parity.shared.b64 open, [%r1], %r2;"
    lines = spin, "@!open bra CLOSED1;\n }", "$L_1:", "$L_2:", LOAD, "@%p1 bra $L_1;", WAIT
    assert early(*lines) == ["ld.global.f32"]
    assert early(spin, f"@!open bra CLOSED1;\n {WAIT}\n}}", LOAD) == []


def test_what_cannot_be_read_is_refused():
    for line in ("brx.idx %r1, $L_1;", "call.uni (retval0), f, (param0);"):
        with pytest.raises(ValueError, match="nobody knows"):
            early(line)
    with pytest.raises(ValueError, match="two labels"):
        early("$L_1:", "ret;", "$L_1:", "ret;")
    with pytest.raises(KeyError):
        early("bra $L_9;")


def test_blocks():
    found = blocks_of("x(){ $L_1: add.s32 %r1, %r1, 1; @%p1 bra $L_1; ret; }")
    assert [b.after for b in found] == [[1, 0], [], []]


def test_where_an_address_comes_from():
    text = "\n".join(
        [
            "k(){", "ld.param.u64 %rd1, [k_param_2];", "ld.param.u64 %rd2, [k_param_3+8];",
            "ld.param.u64 %rd9, [k_param_7];", "add.s64 %rd3, %rd1, %rd2;", "mov.u32 %r1, %tid.x;",
            "$L_1:", "mul.wide.s32 %rd4, %r1, 16;", "add.s64 %rd5, %rd3, %rd4;",
            "ld.global.f32 %f1, [%rd5+16];", "mov.u64 %rd6, %rd5;", "ld.shared.u64 %rd7, [%r1];",
            "@%p1 mov.u64 %rd6, %rd9;", "add.s64 %rd8, %rd7, %rd6;", "st.global.f32 [%rd8], %f1;",
            "mov.b64 {%r2, %r3}, %rd9;", "add.s64 %rd3, %rd3, %rd8;", "}",
        ]
    )  # fmt: skip
    made = parameters_behind(text)
    assert made["%rd1"] == {"2"}
    assert made["%rd4"] == set()
    assert made["%rd6"] == {"2", "3", "7", "memory"}, "round the loop"
    assert made["%r3"] == {"7"}
    assert made["%f1"] == {"memory"}
    load, store = (s for s in before_wait(text) if s.is_access)
    assert address_of(load) == ["%rd5"]
    assert address_of(store) == ["%rd8"]
