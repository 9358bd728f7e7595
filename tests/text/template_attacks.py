"""Chat templates that try to get out of the sandbox or to use up the machine, and a process that renders them all.

    python tests/text/template_attacks.py escapes|bombs      prints a JSON line for each

How each ends, its processor time, and every audit event that a template must not cause. Where the system can hold a
process to it, each has 128 MiB of memory beyond what the process has before.
"""

# ruff: noqa: E501 (an attack is easier to read on one line)
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

SECRET = "tell-nobody"
SECONDS = 0.2  # the limit on processor time while these are rendered: many a bomb uses up what there is
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hello " * 20, "parts": [1, 2.5, None, True, {"k": "v"}]},
    {"role": "assistant", "content": "x" * 1000},
]

_START = ["''", "[]", "{}", "()", "1", "1.5", "true", "none", "messages", "messages[0]", "namespace", "dict", "range", "cycler",
          "joiner", "loop", "raise_exception", "strftime_now", "self", "undefined_name", "caller", "varargs"]  # fmt: skip
_WALK = "__class__.__mro__[1].__subclasses__()"

ESCAPES = {
    **{f"walk from {start}": "{% for x in [1] %}{{ " + start + "." + _WALK + " }}{% endfor %}" for start in _START},
    **{f"globals of {name}": "{{ " + name + ".__init__.__globals__ }}" for name in ("cycler", "joiner", "namespace", "dict", "range")},
    "item": "{{ ''['__class__']['__mro__'] }}",
    "attr filter": "{{ '' | attr('__class__') | attr('__mro__') }}",
    "attr filter in pieces": "{{ '' | attr('__cl' ~ 'ass__') }}",
    "attr filter reversed": "{{ '' | attr('__ssalc__' | reverse) }}",
    "attr filter formatted": "{{ '' | attr('%s%s' % ('__cla', 'ss__')) }}",
    "attr filter joined": "{{ '' | attr(['__', 'class', '__'] | join) }}",
    "attr by escapes": "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "attr by unicode escapes": "{{ ''['\\u005f_class_\\u005f'] }}",
    "attr by wide letters": "{{ ''.__cl\uff41ss__ }}",
    "attr lower": "{{ '' | attr('__CLASS__' | lower) }}",
    "map attribute": "{{ [''] | map(attribute='__class__') | list }}",
    "map attribute path": "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "map attr": "{{ [''] | map('attr', '__class__') | list }}",
    "map default": "{{ [''] | map(attribute='__class__', default=1) | list }}",
    "groupby": "{{ [messages] | groupby('__class__') | list }}",
    "sort attribute": "{{ ['', 1] | sort(attribute='__class__.__name__') }}",
    "unique attribute": "{{ ['', 1] | unique(attribute='__class__') | list }}",
    "sum attribute": "{{ [''] | sum(attribute='__class__', start=0) }}",
    "min attribute": "{{ ['', 'a'] | min(attribute='__class__') }}",
    "selectattr": "{{ [''] | selectattr('__class__') | list }}",
    "rejectattr": "{{ [''] | rejectattr('__class__', 'equalto', 1) | list }}",
    "selectattr test": "{{ [range] | selectattr('__init__.__globals__', 'mapping') | list }}",
    "join attribute": "{{ [''] | join(attribute='__class__') }}",
    "format attribute": "{{ '{0.__class__}'.format('') }}",
    "format attribute path": "{{ '{0.__class__.__mro__[1].__subclasses__}'.format('') }}",
    "format item": "{{ '{0[__class__]}'.format(messages) }}",
    "format map": "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "format conversion": "{{ '{0!r:{1.__class__}}'.format('', '') }}",
    "format of an attribute of a function": "{{ '{0.__globals__}'.format(raise_exception) }}",
    "format by map": "{{ ['{0.__class__}'] | map('format', '') | list }}",
    "str format taken": "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "str format in a dict": "{% set d = {'f': '{0.__class__}'.format} %}{{ d.f('') }}",
    "str format by call block": "{% call '{0.__class__}'.format('') %}{% endcall %}",
    "str format of a filter": "{{ ('{0.__class__}' | string).format('') }}",
    "str format of safe": "{{ ('{0.__class__}' | safe).format('') }}",
    "str format of escape": "{{ ('{0.__class__}' | e).format('') }}",
    "str format map of safe": "{{ ('{a.__class__}' | safe).format_map({'a': 1}) }}",
    "percent of mapping": "{{ '%(a)s' % {'a': messages.__class__} }}",
    "include": "{% include 'secret.txt' %}",
    "include list": "{% include ['/etc/passwd', 'x'] ignore missing %}",
    "import": "{% import '/etc/passwd' as x %}{{ x }}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends '/etc/passwd' %}",
    "extends messages": "{% extends messages %}",
    "self blocks": "{% block a %}{{ self.__init__ }}{% endblock %}",
    "self template": "{% block a %}{{ self._TemplateReference__context }}{% endblock %}",
    "super": "{% block a %}{{ super.__class__ }}{% endblock %}",
    "macro globals": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "macro environment": "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "macro function": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "macro code": "{% macro m() %}{% endmacro %}{{ m._func.__code__.co_consts }}",
    "macro kwargs": "{% macro m() %}{{ kwargs.__class__ }}{{ varargs.__class__ }}{% endmacro %}{{ m(1, a=2) }}",
    "macro caller": "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "generator frame": "{{ ([1] | map('string')).gi_frame.f_back.f_globals }}",
    "generator code": "{{ ([1] | map('string')).gi_code }}",
    "generator yield from": "{{ ([1] | select).gi_yieldfrom }}",
    "generator send": "{{ ([1] | map('string')).send(none) }}",
    "generator throw": "{{ ([1] | map('string')).throw('x') }}",
    "loop context": "{% for x in [1] %}{{ loop._iterable.__class__ }}{% endfor %}",
    "loop recursion": "{% for x in [1] recursive %}{{ loop._recurse.__globals__ }}{% endfor %}",
    "loop cycle": "{% for x in [1] %}{{ loop.cycle.__func__.__globals__ }}{% endfor %}",
    "bound method": "{{ messages.append.__self__.__class__ }}",
    "bound method name": "{{ messages.copy.__name__ }}{{ messages.copy.__qualname__ }}",
    "builtin module": "{{ range.__module__ }}{{ messages.copy.__module__ }}",
    "bytes": "{{ 'x'.encode().__class__.__mro__ }}",
    "bytes fromhex": "{{ 'x'.encode().fromhex('6f73') }}",
    "int from bytes": "{{ (1).from_bytes('x'.encode(), 'big').__class__ }}",
    "dict update": "{{ messages[0].update(role='system') }}",
    "list append": "{{ messages.append(1) }}",
    "list clear": "{{ messages.clear() }}",
    "dict pop": "{{ messages[0].pop('role') }}",
    "dict setdefault": "{{ messages[0].setdefault('a', 1) }}",
    "list sort": "{{ messages.sort() }}",
    "namespace class": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "namespace dunder": "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
    "namespace mangled": "{{ namespace()._Namespace__attrs }}",
    "namespace of messages": "{% set messages.x = 1 %}",
    "namespace getattribute": "{{ namespace().__getattribute__('__class__') }}",
    "cycler items": "{{ cycler(1, 2).__init__.__globals__.os }}",
    "cycler reset": "{{ cycler(1, 2).reset.__func__.__globals__ }}",
    "joiner call": "{{ joiner().__call__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__.os.popen('id').read() }}",
    "lipsum builtins": "{{ lipsum.__globals__['__builtins__']['open'] }}",
    "config": "{{ config }}{{ request }}{{ get_flashed_messages }}{{ url_for }}",
    "dunder import": "{{ __import__('os').system('id') }}",
    "eval": "{{ eval('1') }}{{ exec('1') }}{{ open('/etc/passwd') }}{{ compile('1', '', 'eval') }}",
    "environment": "{{ environment }}{{ self._environment }}",
    "context": "{{ context }}{{ self.context }}",
    "do": "{% do messages.append(1) %}",
    "debug": "{% debug %}",
    "line statement": "# for x in y\n%% print(1)\n{{ 1 }}",
    "undefined": "{{ nothing.__init__.__globals__ }}",
    "undefined hint": "{{ nothing._undefined_hint }}{{ nothing._undefined_exception }}",
    "undefined fail": "{{ nothing._fail_with_undefined_error.__globals__ }}",
    "strftime": "{{ strftime_now.__globals__ }}{{ strftime_now('%Y' * 3).__class__ }}",
    "raise with an object": "{{ raise_exception(raise_exception.__globals__) }}",
    "tojson default": "{{ {'a': raise_exception} | tojson }}",
    "tojson arguments": "{{ {} | tojson(default=raise_exception, cls=dict) }}",
    "xmlattr": "{{ {'a b=': 1} | xmlattr }}",
    "pprint": "{{ raise_exception | pprint }}{{ dict | pprint }}",
    "string of functions": "{{ raise_exception | string }}{{ namespace | string }}{{ range | string }}",
    "random": "{{ [1, 2] | random | attr('__class__') }}",
    "test by name": "{{ [''] | select('callable') | map('attr', '__doc__') | list }}",
    "filter by name": "{{ [['__class__']] | map('first') | map('attr', '__class__') | list }}",
    "set block filter": "{% set x | attr('__class__') %}a{% endset %}{{ x }}",
    "filter block": "{% filter attr('__class__') %}a{% endfilter %}",
    "call block filter": "{% filter format(messages) %}{0.__class__}{% endfilter %}",
    "autoescape": "{% autoescape true %}{{ ('{0.__class__}').format('') }}{% endautoescape %}",
    "generation": "{% generation %}{{ ''.__class__ }}{% endgeneration %}",
    "generator of a dict": "{{ {}.items().__class__ }}{{ {}.keys().mapping.__class__ }}",
    "complex": "{{ (1).real.__class__ }}{{ 1.5.as_integer_ratio().__class__ }}",
    "dict of types": "{{ dict(__class__=1).__class__ }}",
    "trailing newline trick": "{{ ''['__class__\n'] }}",
    "translate table": "{{ 'a'.maketrans('a', 'b') }}{{ 'a'.translate({97: '{0.__class__}'}).format(1) }}",
}  # fmt: skip

_DEEP = "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60
_BIG = "{% set x = 'x' * 4000000 %}"
_LINES = "{% set x = 'x\\n' * 2000000 %}"
_KEPT = "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [VALUE] %}{% endfor %}"

BOMBS = {
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested ranges that write": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "wide ranges": "{{ range(10 ** 12) | list }}",
    "repeated text": "{{ 'x' * 10 ** 9 }}",
    "repeated list": "{{ ([1] * 10 ** 9) | length }}",
    "doubling": "{% set x = 'x' %}" + "{% set x = x ~ x %}" * 60,
    "doubling by replace": "{% set x = 'x' %}" + "{% set x = x | replace('x', 'xx') %}" * 60,
    "macro recursion": "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(99) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "call recursion": "{% macro f() %}{{ caller() }}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}x{% endcall %}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "powers of two": "{{ 2 ** 2 ** 40 }}",
    "big integers": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "integers from text": "{{ ('9' * 4000000) | int }}",
    "floats from text": "{{ ('9' * 4000000) | float }}",
    "shifting": "{{ (1).__lshift__(10 ** 9) }}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "format width by method": "{{ '{:1000000000}'.format(1) }}",
    "format precision": "{{ '%.1000000000f' % 1 }}",
    "center": "{{ 'x' | center(10 ** 9) }}",
    "center by method": "{{ 'x'.center(10 ** 9) }}{{ 'x'.zfill(10 ** 9) }}",
    "indent": _LINES + "{{ x | indent(1000000) }}",
    "indent by text": _LINES + "{{ x | indent('y' * 1000) }}",
    "indent first": "{{ 'x' | indent(10 ** 9, true) }}",
    "expandtabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "wordwrap": _BIG + "{{ x | wordwrap(1) | length }}",
    "wordwrap words": "{{ ('x ' * 2000000) | wordwrap(3) | length }}",
    "wordwrap breaks": "{{ ('x ' * 100000) | wordwrap(1, true, 'y' * 100000) }}",
    "urlize": "{{ ('www.a.com ' * 400000) | urlize }}",
    "urlize brackets": "{{ ('(' * 4000000) | urlize }}",
    "striptags": "{{ ('<' * 4000000) | striptags }}",
    "striptags comments": "{{ ('<!--' * 1000000) | striptags }}",
    "title": "{{ ('a-' * 2000000) | title | length }}",
    "word count": "{{ ('a ' * 2000000) | wordcount }}",
    "pprint": _BIG + "{{ x | pprint }}",
    "pprint lists": "{{ (range(99999) | list) | pprint | length }}",
    "urlencode": "{{ ('é' * 2000000) | urlencode | length }}",
    "escape": "{{ ('<' * 4000000) | e | length }}",
    "xmlattr": "{% set d = dict.fromkeys(range(99999) | map('string'), '<' * 1000) %}{{ d | xmlattr }}",
    "tojson": "{{ ('é' * 4000000) | tojson(ensure_ascii=true) }}",
    "tojson indent": "{{ [[[[1]]]] | tojson(indent=10 ** 9) }}",
    "sorting text": _BIG + "{{ x | sort }}",
    "unique text": _BIG + "{{ x | unique | list }}",
    "batches": _BIG + "{{ x | batch(1) | list | length }}",
    "batches filled": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "slices filled": _BIG + "{{ x | slice(3999999, 1) | list | length }}",
    "sums of lists": "{{ range(99999) | map('list') | sum(start=[]) }}",
    "sum quadratic": "{% set l = [[1]] * 99999 %}{{ l | sum(start=[]) | length }}",
    "sum of texts": "{% set l = [['x' * 1000]] * 99999 %}{{ l | sum(start=[]) | length }}",
    "join of ranges": "{{ range(99999) | join('x' * 100000) }}",
    "groupby": _BIG + "{{ x | list | groupby('x') | list | length }}",
    "split": _LINES + "{{ x.split('\\n') | length }}",
    "split at spaces": "{{ ('x ' * 2000000).split() | length }}",
    "split lines": _LINES + "{{ x.splitlines() | length }}",
    "split quadratic": _BIG + "{% for i in range(9999) %}{% set y = x.split('x') %}{% endfor %}",
    "split of a class": "{{ ('x' * 4000000) | list | map('list') | list | length }}",
    "partition": _BIG + "{% for i in range(99999) %}{% set y = x.partition('y') %}{% endfor %}",
    "search": _BIG + "{% for i in range(99999) %}{{ 'xy' in x }}{% endfor %}",
    "search twoway": "{% set x = ('a' * 999 ~ 'b') * 4000 %}{% for i in range(9999) %}{{ x.find('a' * 500 ~ 'c') }}{% endfor %}",
    "count": _BIG + "{% for i in range(99999) %}{{ x.count('xxy') }}{% endfor %}",
    "upper": _BIG + "{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
    "case fold": "{% set x = 'ß' * 4000000 %}{{ x.upper() | length }}{{ x.casefold() | length }}",
    "normalised": "{% set x = 'ŉ' * 3000000 %}{{ x.upper() }}",
    "reverse": _BIG + "{% for i in range(99999) %}{% set y = x | reverse %}{% endfor %}",
    "truncate": _BIG + "{% for i in range(99999) %}{% set y = x | truncate(3999990) %}{% endfor %}",
    "slicing": _BIG + "{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "slices kept": _BIG + "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = ns.l + [x[i:]] %}{% endfor %}",
    "repr of nested lists": _DEEP + "{{ x }}",
    "nested lists as json": _DEEP + "{{ x | tojson }}",
    "nested lists compared": _DEEP + "{{ x == [x] }}",
    "nested dicts": "{% set x = {'a': 1} %}" + "{% set x = {'a': x, 'b': x} %}" * 60 + "{{ x }}",
    "nested lists hashed": _DEEP + "{{ {(x | string): 1} }}",
    "deep list written": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "deep parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "deep lists": "{{ " + "[" * 20000 + "]" * 20000 + " }}",
    "deep blocks": "{% if 1 %}" * 9000 + "{% endif %}" * 9000,
    "deep loops": "{% for i in [1, 2] %}" * 60 + "x" + "{% endfor %}" * 60,
    "deep attributes": "{{ a" + ".a" * 100000 + " }}",
    "deep calls": "{{ dict" + "()" * 100000 + " }}",
    "deep filters": "{{ 'x'" + " | upper" * 25000 + " }}",
    "deep sums": "{{ 1" + " + 1" * 50000 + " }}",
    "deep comparisons": "{{ 1" + " < 1" * 50000 + " }}",
    "deep conditions": "{{ " + "1 if 1 else " * 15000 + "1 }}",
    "deep nots": "{{ " + "not " * 50000 + "1 }}",
    "deep minus": "{{ " + "-" * 200000 + "1 }}",
    "many expressions": "{{ a }}" * 37000,
    "many statements": "{% set a = 1 %}" * 17000,
    "many macros": "{% macro m() %}{% endmacro %}" * 8000,
    "many constants": "{{ 'x' | center(4000000) }}" * 1500,
    "many long constants": "{% set a = 'x' | center(4000000) %}" * 1500,
    "long source": "x" * (300 << 10),
    "dictionaries from pairs": "{{ dict(range(99999) | map('string') | map('list') | list) | length }}",
    "dictionary keys": "{{ dict.fromkeys(('x' * 4000000) | list) | length }}",
    "dictionaries": "{% for i in range(99999) %}{% set d = dict.fromkeys(range(99999)) %}{% endfor %}",
    "cycler": "{% set c = cycler(*range(99999)) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}",
    "arguments": "{{ dict(*range(99999)) }}",
    "many kept texts": _KEPT.replace("VALUE", "('x' * 4000000) ~ i"),
    "many kept short texts": _KEPT.replace("VALUE", "('x' * 20000) ~ i"),
    "many kept lists": _KEPT.replace("VALUE", "range(99999) | list"),
    "many variables": "".join(f"{{% set a{i} = ('x' * 4000000) ~ {i} %}}" for i in range(200)),
    "many wide variables": "".join(f"{{% set a{i} = ('\U0001f600' * 4000000) ~ {i} %}}" for i in range(60)),
    "a block of texts": "{% set b %}{% for i in range(99) %}{{ ('x' * 4000000) ~ i }}{% endfor %}{% endset %}",
    "a macro of texts": "{% macro m() %}{% for i in range(99) %}{{ ('x' * 4000000) ~ i }}{% endfor %}{% endmacro %}{{ m() | length }}",
    "lists of distinct texts": "{% set l = range(99999) | map('string') | map('center', 3000) | list %}{{ l | length }}",
    "output": "{% for i in range(99999) %}{{ messages[1].content }}{% endfor %}",
    "strftime": "{{ strftime_now('%A' * 1000000) | length }}",
    "strftime width": "{{ strftime_now('%999999999Y') | length }}",
    "exceptions": "{{ raise_exception('x' * 4000000) }}",
    "bytes": "{{ 'x'.encode() * 10 ** 9 }}",
    "encodings": _BIG + "{% for i in range(9999) %}{% set y = x.encode('utf-32') %}{% endfor %}",
    "encodings kept": _BIG + "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + [x.encode('utf-32')] %}{% endfor %}",
    "encoding to idna": "{{ ('é' * 400000).encode('idna') }}",
    "encoding to punycode": "{{ ('é' * 400000 ~ 'ö').encode('punycode') }}",
    "number digits": "{{ ('1' * 4000).isdigit() }}{{ (10 ** 70) | string | length }}{{ 10 ** 400 }}",
    "round": "{{ 1.5 | round(10 ** 9) }}",
    "file sizes": "{{ (10 ** 70) | filesizeformat }}",
}  # fmt: skip


def render_all(attacks: dict[str, str]) -> None:
    """Each in a process of its own where there is `fork`: what one leaves behind is not the next one's."""
    from weft.text import meter
    from weft.text.chat import render

    warm_up(render)
    meter.TIME_LIMIT_S = SECONDS
    watch = Watch()
    sys.addaudithook(watch)
    for name, template in attacks.items():
        process = os.fork() if hasattr(os, "fork") else 0
        if process:
            os.waitpid(process, 0)
            continue
        if hasattr(os, "fork"):
            limit_memory(128 << 20)
        print(json.dumps({"name": name, **rendered(template, watch)}), flush=True)
        if hasattr(os, "fork"):
            os._exit(0)


class Watch:
    """An audit hook that notes what a template must not cause, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and is_bad(event, arguments):
            self.seen.append(f"{event} {arguments!r:.200}")


def rendered(template: str, watch: Watch) -> dict[str, Any]:
    from weft.errors import WeftError
    from weft.text.chat import render

    watch.seen = []
    start, text, watch.on = time.thread_time(), "", True
    try:
        text = render(template, MESSAGES)
        ending = "output"
    except WeftError as error:
        ending, text = type(error).__name__, str(error)
    except BaseException as error:
        ending = f"not weft's: {type(error).__name__}"
    watch.on, seconds = False, time.thread_time() - start
    leaks = [word for word in LEAKS if word in text and word not in template]
    return {"ending": ending, "seconds": seconds, "events": watch.seen, "leaks": leaks, "text": text[:200]}


def limit_memory(size: int) -> None:
    """Let the process have `size` bytes more than it has."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        import resource

        limit = int(statm.read_text().split()[0]) * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def warm_up(render: Any) -> None:
    """Let jinja2 import what it imports when it is first needed: escapes in texts, tracebacks of failed templates."""
    render("{{ messages | tojson }}{{ 'a\\u0062' }}{% for m in messages %}{{ m.role | trim }}{% endfor %}", MESSAGES)
    for template in ("{{ raise_exception('x') }}", "{% x"):
        with contextlib.suppress(Exception):
            render(template, MESSAGES)


# What no output may contain: something of Python's inside, the environment, or a file.
LEAKS = ("<class", "<module", "<function", "<bound method", "<built-in", "built-in", " object at 0x", "root:", "__globals__", SECRET,
         "subprocess", "site-packages", "/weft/")  # fmt: skip


def is_bad(event: str, arguments: tuple[Any, ...]) -> bool:
    """An audit event that a template must not cause. jinja2 compiles the template, its numbers, and a line that raises."""
    if event == "compile":
        source, name = arguments
        return name != "<template>" and not (
            name == "<unknown>" and re.fullmatch(rb"[0-9._eE+-]+|raise __jinja_exception__", source)
        )
    if event in ("exec", "code.__new__"):
        name = arguments[0].co_filename if event == "exec" else arguments[1]
        return name not in ("<template>", "<unknown>")
    return event.startswith(("open", "import", "os.", "socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "code.", "marshal.",
                             "pickle.", "sys._getframe", "builtins.input", "gc.", "tempfile.", "urllib.", "webbrowser."))  # fmt: skip


if __name__ == "__main__":
    render_all(ESCAPES if sys.argv[1] == "escapes" else BOMBS)
