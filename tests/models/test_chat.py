"""Chat templates: text of conversations, and errors for hostile templates."""

import pytest

from ggsched.errors import ModelError
from ggsched_llm.chat import ChatTemplate, Message

CHATML = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
LLAMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set ns = namespace(system=messages[0]['content']) %}
{% set loop_messages = messages[1:] %}{% else %}{% set ns = namespace(system='') %}{% set loop_messages = messages %}{% endif %}
{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if m['role'] == 'user' %}[INST] {{ ns.system }}{{ m['content'] }} [/INST]{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}
{% endfor %}"""  # noqa: E501
ASKED = [Message("user", " hi "), Message("assistant", "hello"), Message("user", "bye")]


def template(source):
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, "m.gguf")


def test_chatml():
    assert template(CHATML).render(ASKED) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template(CHATML).render(ASKED, add_generation_prompt=False).endswith("assistant\n")


def test_special_tokens_and_namespaces():
    found = template(LLAMA2).render([Message("system", "S "), *ASKED])
    assert found == "<s>[INST] S  hi  [/INST]hello</s>[INST] S bye [/INST]"


def test_text_of_users_is_not_a_template():
    hostile = Message("user", "{{ 7 * 7 }}{% endfor %}")
    assert "{{ 7 * 7 }}{% endfor %}" in template(CHATML).render([hostile])


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch):
    """Other limits are reached first, however slow the machine is."""
    monkeypatch.setattr("ggsched_llm.chat.MAX_SECONDS", float("inf"))


LONG = "{% set b = range(99999) | join ~ '' %}{% set c = b ~ '' %}"


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ undefined.name }}", "undefined"),
        ("{{ 'a' * 10 }}", "what may be large"),
        ("{{ 9 ** 9 }}", "what may be large"),
        ("{{ '%99999d' % 3 }}", "what may be large"),
        ("{% for i in range(99999) %}{% for j in range(99) %}{% endfor %}{% endfor %}", "rounds"),
        ("{% for i in range(999999) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 1 / 0 }}", "division"),
        ("x" * (1 << 19), "are allowed"),
        ("{% break %}", "outside loop"),
        ("{{ 1e999 }}", "inf"),
        (f"{{{{ {'9' * 5000} }}}}", "digits"),
        ("{% for i in [1] %}" * 100 + "{% endfor %}" * 100, "too many"),
        (f"{{% set a = 'xx' %}}{'{% set a = a ~ a %}' * 99}", "characters"),
        (f"{{% set a = 'xx' %}}{'{% set a = a + a %}' * 99}", "characters"),
        (f"{{% set a = [1] %}}{'{% set a = a + a %}' * 99}", "too many values"),
        (f"{{% set a = [1] %}}{'{% set a = [a, a] %}' * 99}{{{{ a }}}}", "too many values"),
        (f"{{% set a = [1] %}}{'{% set a = {1: a, 2: a} %}' * 99}{{{{ a }}}}", "too many values"),
        ("{% set n = namespace() %}{% set n.a = [n, n] %}{{ n }}", "too many values"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}", "rounds"),
        (
            "{% set a %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
            "text",
        ),
        ("{% set a = range(9999) | join %}{{ a | replace('1', a) }}", "characters"),
        ("{% set a = range(9999) | join %}{{ a.replace('', a) }}", "characters"),
        ("{% set a = range(9999) | join %}{{ a | join(a) }}", "characters"),
        ("{% set a = range(9999) | join %}{{ a.join(a) }}", "characters"),
        ("{{ 'a'.ljust(9999999999) }}", "unsafe"),
        ("{{ '{:>9999999999}'.format(1) }}", "unsafe"),
        ("{{ (5).to_bytes(9999999999, 'big') }}", "unsafe"),
        ("{{ [1] | tojson(indent=9999999999) }}", "indents"),
        ("{{ 'a' | indent(9999999999) }}", "indents"),
        ("{{ 1 | round(9999999999, 'floor') }}", "digits"),
        ("{{ 1 | round(precision=9999999999, method='floor') }}", "digits"),
        ("{{ ('9' * 1) }}", "large"),
        ("{{ 'f' | replace('f', 'f' * 1) }}", "large"),
        ("{% set a = range(9999) | join %}{{ ('f' ~ a) | int(base=16) }}", "integers"),
        (f"{{% set n = 99999 %}}{'{% set n = n + n %}' * 99}", "integers"),
        (f"{{% set n = 99999 %}}{'{% set n = n - (0 - n) %}' * 99}", "integers"),
        ("{{ '%9999999999d' | format(1) }}", "width"),
        ("{{ '%*d' | format(9999999, 1) }}", "width"),
        ("{{ [1] | batch(9999999999, 0) | list }}", "batches"),
        ("{{ [[1], [2]] | sum(start=[]) }}", "no numbers"),
        *(
            (
                LONG + f"{{% for i in range(99999) %}}{{% if {test} %}}{{% endif %}}{{% endfor %}}",
                "text",
            )
            for test in ("'9' in b", "b == c", "b.strip()", "b.count('x')", "c.startswith(b)")
        ),
    ],
)
def test_refused(source, word):
    with pytest.raises(ModelError, match="chat template cannot be used") as info:
        template(source).render(ASKED)
    assert word in str(info.value)


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr("ggsched_llm.chat.MAX_SECONDS", 20.0)
    source = template("{% for i in range(9) %}{{ i }}{% endfor %}")
    assert source.render(ASKED) == "012345678"
    clock = iter(range(0, 10**6, 5))
    monkeypatch.setattr("ggsched_llm.chat.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(ModelError, match="takes more than 20 s"):
        source.render(ASKED)


def test_filters_of_published_templates():
    source = """{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, sort_keys=true) }}
{{- [1] | tojson(indent=None, separators=(',', ':')) }} {{ 2.345 | round(2) }} {{ 7.6 | round }}
{{- [1, 2, 3] | batch(2, 0) | list }} {{ 'one two three' | truncate(10, leeway=0) }}
{{- '%s-%d' | format('a', 3) }} {{ [1, 2] | sum }} {{ [{'n': 2}] | sum(attribute='n') }}"""
    wanted = '{"a": 1, "b": "\\u00e9"}[1] 2.35 8.0[[1, 2], [3, 0]] one...a-3 3 2'
    assert template(source).render(ASKED) == wanted


def test_what_templates_use():
    source = """{% macro put(m, end='') %}{{ m.role | upper ~ ':' }}{{ m.content | trim }}{{ end }}
{%- endmacro %}{% set n = namespace(all=[], last=none) %}
{%- for m in messages[::-1] | reverse if m.role in ('user', 'assistant') %}
{%- set n.all = n.all + [put(m, end=';' if not loop.last else '.')] %}{% endfor %}
{{- n.all | join(' ') }} {{ messages | map(attribute='role') | unique | join(',') }}
{{- {'a': [1, 2.5]} | tojson(indent=1) | replace('\n', '') }}
{{- '<think>x</think> y'.split('</think>')[-1].lstrip() }}
{{- (messages | selectattr('role', 'equalto', 'user') | list)[1:] | length }}
{{- dict(b=2).items() | list | string }}{% for k, v in {'k': 'v'}.items() %}{{ k }}{% endfor %}
{{- 'a\nb' | indent(2) }}{{ 2 + 3 * 4 }}{{ (7 % 4) | string }}"""
    found = template(source).render(ASKED)
    wanted = 'USER:hi; ASSISTANT:hello; USER:bye. user,assistant{ "a": [  1,  2.5 ]}y1'
    assert found == wanted + "[('b', 2)]ka\n  b143"


def test_steps_are_counted_anew_for_each_text():
    half = template("{% for i in range(60000) %}{% endfor %}done")
    assert [half.render(ASKED) for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("'a' + none", 'can only concatenate str (not "NoneType") to str'),
        ("messages[0].content + 3", 'can only concatenate str (not "int") to str'),
        ("none | length", "object of type 'NoneType' has no len()"),
        ("3 | join", "'int' object is not iterable"),
        ("none < 3", "'<' not supported between instances of 'NoneType' and 'int'"),
    ],
)
def test_what_an_expression_cannot_compute_is_a_line_of_the_template(expression, said):
    """No class of Python's errors is named."""
    with pytest.raises(ModelError) as caught:
        template("\n\n{{ " + expression + " }}").render(ASKED)
    line = caught.value.one_line()
    assert f"line 3 computes what its values do not allow: {said}" in line
    assert "Error:" not in line.replace("ggsched: error:", "")
