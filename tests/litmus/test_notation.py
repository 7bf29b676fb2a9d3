import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched_testing.litmus import LitmusBlock, Op, Range, block_verdict, parse_litmus

HEAD = "litmus X race\n"


def one(text):
    (block,) = parse_litmus(text, "f.litmus")
    return block


def op(line):
    return one(HEAD + line).ops[0]


def refused(text, file="f.litmus"):
    with pytest.raises(UsageError) as caught:
        parse_litmus(text, file)
    assert caught.value.exit_code == 2
    return caught.value


class TestOperations:
    def test_reads_and_writes(self):
        found = op("A: copy x?1 y > P[4:8]#2 z")
        assert found == Op(
            line=2,
            text="A: copy x?1 y > P[4:8]#2 z",
            actor="A",
            verb="copy",
            reads=(Range("x", None, None, "1"), Range("y", None, None, "")),
            writes=(Range("P", 4, 8, "2"), Range("z", None, None, "")),
        )

    @pytest.mark.parametrize(
        "line",
        [
            "A: copy x?1 > y#2",
            "  A:copy x?1>y#2  ; why",
            "A :  copy\tx?1 >\ty#2;",
            "A: copy x?1 >y#2\r",
        ],
    )
    def test_space_does_not_matter(self, line):
        found = op(line)
        assert (found.actor, found.verb) == ("A", "copy")
        assert (found.reads, found.writes) == (
            (Range("x", None, None, "1"),),
            (Range("y", None, None, "2"),),
        )

    def test_markers(self):
        block = one(HEAD + "- A: run > x\n+A: run > y\nA: run > z\n")
        assert [o.writes[0].name for o in block.variant("broken")] == ["x", "z"]
        assert [o.writes[0].name for o in block.variant("fixed")] == ["y", "z"]

    def test_names_may_be_odd(self):
        found = op("S_0.a: mul-mat/f16 blk.0.attn_q-w?v1.0-a > out'")
        assert (found.actor, found.verb) == ("S_0.a", "mul-mat/f16")
        assert found.reads[0] == Range("blk.0.attn_q-w", None, None, "v1.0-a")

    @pytest.mark.parametrize("line", ["A: rec e1", "H: wait e1", "H: sync e1"])
    def test_sync(self, line):
        found = op(line)
        assert (found.target, found.reads, found.writes) == ("e1", (), ())

    def test_work_without_memory(self):
        assert op("A: run").verb == "run"

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("A run > x", "an operation is"),
            (": run > x", "an operation is"),
            ("1: run > x", "an operation is"),
            ("A B: run > x", "an operation is"),
            ("+", "an operation is"),
            ("- - A: run", "an operation is"),
            ("A:", "no verb"),
            ("A: > x", "no verb"),
            ("A: run x > y > z", "one >"),
            ("A: run x >", "one >"),
            ("A: run x#1 > y", "a read needs"),
            ("A: run > y?1", "a write leaves"),
            ("A: run x[4:4]", "an empty range"),
            ("A: run x[5:4]", "an empty range"),
            ("A: run x[a:b]", "no range"),
            ("A: run x[4]", "no range"),
            ("A: run x[-1:4]", "no range"),
            ("A: run x[0:4", "no range"),
            ("A: run x? > y", "no range"),
            ("A: run x, y > z", "no range"),
            ("A: run x?1?2", "no range"),
            ("A: rec", "takes one name"),
            ("A: wait e f", "takes one name"),
            ("H: sync A > x", "takes one name"),
            ("A: capbegin now", "takes no operands"),
            ("H: capbegin", "is for queues"),
            ("H: devsync A", "takes no operands"),
        ],
    )
    def test_malformed(self, line, says):
        error = refused(f"{HEAD}A: run > x\n\n{line}\n")
        assert error.where == "f.litmus:4"
        assert says in error.what


class TestBlocks:
    def test_several_in_a_plain_file(self):
        text = "; about\n\nlitmus a race ; first\nA: run\n\nlitmus b value\n; nothing\nA: run\n"
        assert [(b.id, b.kind, b.line) for b in parse_litmus(text)] == [
            ("a", "race", 3),
            ("b", "value", 6),
        ]

    def test_an_actor_may_be_called_litmus(self):
        assert one(HEAD + "litmus: run > x").ops[0].actor == "litmus"

    @pytest.mark.parametrize(
        ("text", "line", "says"),
        [
            ("litmus X\nA: run", 1, "a header is"),
            ("litmus X race now\nA: run", 1, "a header is"),
            ("litmus X rice\nA: run", 1, "kind 'rice'"),
            ("litmus X race\n", 1, "no operations"),
            ("litmus X race\n; empty\nlitmus Y race\nA: run", 1, "no operations"),
            ("\nA: run > x\n", 2, "before the first header"),
        ],
    )
    def test_malformed(self, text, line, says):
        error = refused(text)
        assert error.where == f"f.litmus:{line}"
        assert says in error.what

    @pytest.mark.parametrize("text", ["", "\n\n", "; nothing\n"])
    def test_nothing(self, text):
        assert refused(text).what == "no litmus block"


class TestMarkdown:
    def test_fences(self):
        text = (
            "# T\n\ntext: more\n```litmus X race\nA: run > x\n```\n~~~litmus Y value\nB: run\n~~~\n"
        )
        assert [(b.id, b.line, b.ops[0].line) for b in parse_litmus(text)] == [
            ("X", 4, 5),
            ("Y", 7, 8),
        ]

    def test_fences_of_others_are_text(self):
        text = "````md\n```litmus X race\n```\n````\n```py\nlitmus\n```\n"
        text += "```litmus Y race\nA: run\n```\n"
        assert [b.id for b in parse_litmus(text)] == ["Y"]

    def test_indented_in_a_list(self):
        assert one("* a\n\n  ```litmus X race\n  A: run > x\n  ```\n").ops[0].writes[0].name == "x"

    def test_not_closed(self):
        error = refused("text\n```litmus X race\nA: run\n", "f.md")
        assert (error.where, error.what) == ("f.md:2", "the fence is not closed")

    def test_errors_name_the_line_of_the_file(self):
        assert refused("a\n\n```litmus X race\nA: run\nA run\n```\n", "f.md").where == "f.md:5"

    def test_header_without_words(self):
        assert refused("```litmus\nA: run\n```\n").where == "f.litmus:1"

    def test_a_document_without_blocks(self):
        assert refused("# T\n\nA: run\n", "f.md").what == "no litmus block"


WORDS = "A: H: run rec wait sync capbegin x e [0:4] [ ] : ?1 #1 > ; + - é ٣"
SPACE = [" ", "\n", "\t", "\r", "\x0c", "\u2028"]
PIECES = st.sampled_from(
    ["litmus X race\n", "```litmus X race\n", "```\n", "9" * 5000, *WORDS.split(), *SPACE, *SPACE]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
@example("litmus X race\nA: run x[" + "9" * 5000 + ":1]")
@example("litmus X race\nA: run x[٣:٤]")
def test_any_text_is_blocks_or_an_error(text):
    try:
        blocks = parse_litmus(text)
    except UsageError:
        return
    assert blocks
    assert all(isinstance(block, LitmusBlock) and block.ops for block in blocks)
    for block in blocks[:3]:
        assert all(j.agree for j in block_verdict(block))
