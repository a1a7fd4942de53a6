#!/usr/bin/env python3
"""Writes schema_cases.json: JSON Schemas with instances that they allow and forbid, and schemas that must be refused.

usage: make_schema_cases.py > schema_cases.json

Each case is {"name", "schema", "accept", "reject"} or {"name", "schema", "refused": the start of the error}. Instances are
values; "accept_text" and "reject_text" are texts as they stand. "narrowed" are values that the schema allows but no grammar
writes (another order of members, other spellings). tools/check_schemas.mjs asks another validator about all of them.
Standard library only.
"""
import json
import sys

CASES = []


def case(name, schema, accept=(), reject=(), **more):
    CASES.append({"name": name, "schema": schema, "accept": list(accept), "reject": list(reject), **more})


def refused(name, schema, at):
    CASES.append({"name": name, "schema": schema, "refused": at})


def obj(properties, required=None, additional=False, **more):
    schema = {"type": "object", "properties": properties}
    schema["required"] = list(properties) if required is None else required
    if additional is not None:
        schema["additionalProperties"] = additional
    return {**schema, **more}


STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": t} for t in ("string", "integer", "number", "boolean", "null"))
SAMPLES = {"null": None, "boolean": True, "integer": 7, "number": 1.5, "string": "x", "array": [1], "object": {"a": 1}}


def types():
    case("anything", {}, [None, True, 1, -2.5, "x", [], {}, [1, [2, {"a": None}]], {"a": {"b": [1, "x"]}}],
         reject_text=["", "nul", "01", "1.", "+1", "[1,]", "{\"a\":}", "\"a", "'a'", "[1 2]", "{a:1}", "NaN", "-", "1e", "tru", "\"\t\"", "\"\\x\""])
    case("true", True, [None, 0, "y", [{}]])
    refused("false", False, "#: no text")
    for name, sample in SAMPLES.items():
        others = [v for k, v in SAMPLES.items() if k != name and not (name == "number" and k == "integer")]
        case("type " + name, {"type": name}, [sample], others)
    case("two types", {"type": ["string", "null"]}, ["a", None], [1, True, [], {}])
    case("three types", {"type": ["integer", "boolean", "array"]}, [1, False, [], [1, "a"]], ["a", None, 1.5, {}])
    case("integer and number", {"type": ["integer", "number"]}, [1, 1.5], ["1", None])
    case("nullable", {"type": "string", "nullable": True}, ["a", None], [1, False])
    case("strings", STRING, ["", "a\"b\\c/d\b\f\n\r\t", "é", "日本語", "😀", "\u0001", "\u007f", "a b", "{\"a\":1}"],
         accept_text=['"\\u00e9"', '"\\ud83d\\ude00"', '"\\/"', '"\\u0041\\n"', ' "a"', '\n\n"a"'],
         reject_text=['"\\ud83d"', '"\\ude00"', '"\\ud83dx"', '"\n"', '"a" ', '"\\u00g0"', '"\\U0041"', '\n\n\n"a"', "  \"a\""])
    case("numbers", NUMBER, [0, -1, 1.5, -0.25, 1e10, 123456789012345678],
         accept_text=["1e5", "1E+5", "2.5e-3", "-0", "0.0"], reject_text=["1e", ".5", "5.", "1e100", "--1", "1234567890123456789", "0x1", "Infinity"])
    case("integers", INTEGER, [0, -1, 42, 999999999999999999], [1.5], reject_text=["-0", "00", "1e3", "-", "1234567890123456789"])
    annotations = {"title": "T", "description": "D", "default": 1, "examples": [2], "$comment": "c", "deprecated": True,
                   "readOnly": True, "writeOnly": False, "$schema": "https://json-schema.org/draft/2020-12/schema",
                   "$id": "https://example.com/s", "x-order": 3}
    case("annotations", {**annotations, "type": "integer"}, [1], ["1"])


def literals():
    case("enum of strings", {"enum": ["red", "green", "blue"]}, ["red", "green", "blue"], ["re", "redd", "", None, "Red"])
    case("enum with a prefix of another", {"enum": ["a", "ab", "abc"]}, ["a", "ab", "abc"], ["abcd", "b", ""])
    case("enum of all kinds", {"enum": [None, True, 3, -2.5, "x", [1, "a"], {"k": [None]}]},
         [None, True, 3, -2.5, "x", [1, "a"], {"k": [None]}], [False, 4, "y", [1], [1, "b"], {}, {"k": []}, {"k": [None], "j": 1}])
    case("enum with type", {"type": "string", "enum": ["a", 1, None, "b"]}, ["a", "b"], [1, None, "c"])
    case("enum of integers", {"type": "integer", "enum": [1, 10, 100]}, [1, 10, 100], [0, 11, 1000])
    case("enum with minimum", {"enum": [1, 5, 9], "minimum": 4}, [5, 9], [1])
    case("enum with pattern", {"enum": ["aa", "ab", "ba"], "pattern": "^a"}, ["aa", "ab"], ["ba"])
    case("enum with length", {"enum": ["a", "äö", "abc"], "minLength": 2, "maxLength": 2}, ["äö"], ["a", "abc"])
    case("enum in Unicode", {"enum": ["日本", "é\"\\", "😀\n", "\u0001"]}, ["日本", "é\"\\", "😀\n", "\u0001"], ["日", "é", "😀"])
    case("const string", {"const": "only"}, ["only"], ["onl", "only ", None])
    case("const number", {"const": 12}, [12], [1, 2, 123, "12"])
    case("const null", {"const": None}, [None], [False, 0])
    case("const object", {"const": {"a": [1, {"b": "c"}], "d": {}}}, [{"a": [1, {"b": "c"}], "d": {}}],
         [{"a": [1, {"b": "c"}]}, {"a": [1], "d": {}}, {}])
    case("const empty array", {"const": []}, [[]], [[1], None])
    case("const and enum", {"const": "b", "enum": ["a", "b"]}, ["b"], ["a"])
    case("enum of objects with required", {"enum": [{"a": 1}, {"b": 2}], "required": ["b"]}, [{"b": 2}], [{"a": 1}])
    case("enum of arrays with items", {"enum": [[1], ["a"], []], "items": {"type": "string"}}, [["a"], []], [[1]])
    refused("empty enum", {"enum": []}, "#: no text")
    refused("const against type", {"type": "integer", "const": "a"}, "#: no text")
    refused("const against enum", {"const": "c", "enum": ["a", "b"]}, "#: no text")


def numbers():
    for low, high in [(0, 0), (0, 9), (1, 100), (-5, 5), (10, 12), (99, 101), (-100, -1), (0, 255), (1900, 2100), (-1000000, 1000000), (7, 7)]:
        inside = sorted({low, high, (low + high) // 2, min(high, low + 1)})
        outside = [low - 1, high + 1, high * 10 + 10, low - 1000, 10 ** 12, 0.5 + low]
        case(f"integer {low} to {high}", {"type": "integer", "minimum": low, "maximum": high}, inside, outside)
    case("integer at least 18", {"type": "integer", "minimum": 18}, [18, 19, 20, 99, 100, 123456789], [17, 0, -18, 1])
    case("integer at most -3", {"type": "integer", "maximum": -3}, [-3, -4, -30, -100], [-2, 0, 3, 30])
    case("integer above 5", {"type": "integer", "exclusiveMinimum": 5}, [6, 10, 50], [5, 4, 0])
    case("integer below 5", {"type": "integer", "exclusiveMaximum": 5}, [4, 0, -100], [5, 6, 40])
    case("integer between, exclusive", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, [1, 2], [0, 3, -1, 10])
    case("integer with decimal bounds", {"type": "integer", "minimum": 0.5, "maximum": 3.2}, [1, 2, 3], [0, 4])
    case("draft 4 exclusive", {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 4, "exclusiveMaximum": False},
         [2, 3, 4], [1, 5])
    case("number 0 to 1", {"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.125, 0.999999], [-0.1, 1.1, 2, 10, -1], reject_text=["1.01", "-0", "1e0"])
    case("number above 0", {"type": "number", "exclusiveMinimum": 0}, [0.1, 1, 100.25, 0.001], [0, -1, -0.5], reject_text=["0.0", "0.000"])
    case("number below 0", {"type": "number", "exclusiveMaximum": 0}, [-0.1, -1, -20.5], [0, 1, 0.5])
    case("number -1.5 to 2.25", {"type": "number", "minimum": -1.5, "maximum": 2.25}, [-1.5, -1.49, -1, 0, 2.25, 2.2, 2, 2.249], [-1.51, -2, 2.26, 2.3, 3, 22, -15])
    case("number, exclusive decimals", {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3}, [0.11, 0.2, 0.29, 0.2999], [0.1, 0.3, 0, 1, 0.31, 0.09])
    case("latitude", {"type": "number", "minimum": -90, "maximum": 90}, [-90, 90, 48.137154, -0.5, 0], [90.1, -90.000001, 180, 900])
    case("large bounds", {"type": "integer", "minimum": 1000000000, "maximum": 9007199254740991}, [1000000000, 9007199254740991, 4503599627370496], [999999999, 9007199254740992])
    case("bounds beside other types", {"minimum": 3, "maximum": 5}, [3, 4, 5, "a", None, [1], {"a": 1}], [2, 6, 5.1])
    case("int32", {"type": "integer", "format": "int32"}, [0, 2147483647, -2147483648], [2147483648, -2147483649])
    case("int64", {"type": "integer", "format": "int64"}, [0, 123456789012345678], ["a"])
    case("double", {"type": "number", "format": "double"}, [0.5, 3], ["a"])
    case("multiples of 1", {"type": "number", "multipleOf": 1}, [1, 0, -3], [1.5])
    case("multiples of 5", {"type": "integer", "multipleOf": 5}, [0, 5, 10, -15, 1000000], [1, 4, 12, -1])
    case("multiples of 7 in a range", {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 50}, [14, 21, 28, 35, 42, 49], [7, 10, 50, 56, 15])
    case("multiples of 4 and 6", {"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6}]}, [0, 12, 24, -36], [4, 6, 8, 18])
    refused("multiples of a fraction", {"type": "number", "multipleOf": 0.01}, "#/multipleOf")
    refused("empty range", {"type": "integer", "minimum": 5, "maximum": 4}, "#: no text")
    refused("no integer between", {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "#: no text")
    refused("minimum is text", {"minimum": "5"}, "#/minimum")


def strings():
    case("length 2 to 4", {"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abc", "abcd", "日本語", "😀😀", "\n\"", "a\\b"], ["", "a", "abcde", "😀", "日本語日本"],
         accept_text=['"\\ud83d\\ude00\\ud83d\\ude00"', '"\\u0041b"'], reject_text=['"\\ud83d\\ude00"', '"\\u0041"', '"\\n\\n\\n\\n\\n"'])
    case("length at least 3", {"type": "string", "minLength": 3}, ["abc", "a" * 50, "éèê"], ["", "ab", "éè"])
    case("length at most 3", {"type": "string", "maxLength": 3}, ["", "a", "abc", "😀😀😀"], ["abcd", "😀😀😀😀"])
    case("empty string", {"type": "string", "maxLength": 0}, [""], ["a"])
    case("length 1", {"type": "string", "minLength": 1, "maxLength": 1}, ["a", "é", "😀", "\\"], ["", "ab"])
    case("length 200 to 300", {"type": "string", "minLength": 200, "maxLength": 300}, ["x" * 200, "é" * 300], ["x" * 199, "x" * 301])
    case("length beside other types", {"minLength": 2}, ["ab", 1, None, []], ["a"])
    refused("lengths out of order", {"type": "string", "minLength": 3, "maxLength": 2}, "#: no text")
    refused("negative length", {"minLength": -1}, "#/minLength")
    refused("fractional length", {"maxLength": 1.5}, "#/maxLength")


def patterns():
    def pattern(text, accept, reject, **more):
        case("pattern " + text, {"type": "string", "pattern": text}, accept, reject, **more)

    pattern("^[a-z]+$", ["a", "abc"], ["", "A", "a1", "a b", "é"])
    pattern("abc", ["abc", "xxabcxx", "aabc", "é abc\n"], ["ab", "acb", ""])
    pattern("^abc", ["abc", "abcdef"], ["xabc", "ab"])
    pattern("abc$", ["abc", "xyzabc"], ["abcx", "ab"])
    pattern("^$", [""], ["a"])
    pattern("", ["", "anything"], [])
    pattern("^a|b$", ["a", "ax", "xb", "b"], ["xa", "bx", "c"])
    pattern("^(a|b)$", ["a", "b"], ["ab", "c", ""])
    pattern("(^a|b$)", ["ac", "cb"], ["ca", "bc"])
    pattern("^\\d{3}-\\d{4}$", ["555-1234"], ["5555-123", "555-12345", "a555-1234"])
    pattern("^[A-Z]{2}\\d{2,4}$", ["AB12", "XY1234"], ["A12", "AB1", "AB12345"])
    pattern("^\\w+@\\w+\\.com$", ["me@site.com"], ["me@site.org", "@site.com"])
    pattern("^[^aeiou]+$", ["xyz", "\n", "日", "\"\\"], ["xaz", ""])
    pattern("^.{2,3}$", ["ab", "é日😀", "\"\\"], ["a", "abcd", "a\n"])
    pattern("^\\s*$", ["", " \t\n", "\u00a0"], ["a", " a"])
    pattern("^\\S+\\s\\S+$", ["a b", "é\té"], ["ab", "a  "])
    pattern("^(?:ab)*$", ["", "ab", "abab"], ["a", "aba"])
    pattern("^(?<year>\\d{4})$", ["2024"], ["224"])
    pattern("^a+?b??$", ["a", "aab"], ["b", "abb"])
    pattern("^[\\d\\-x]+$", ["1-x", "-"], ["a"])
    pattern("^[a\\]b]+$", ["a]b"], ["c"])
    pattern("^[-a]+$", ["-a"], ["b"])
    pattern("^\\$\\d+\\.\\d{2}$", ["$12.50"], ["12.50", "$12.5"])
    pattern("^\\/api\\/v\\d$", ["/api/v1"], ["api/v1"])
    pattern("^\\u0041\\x42C$", ["ABC"], ["abc"])
    pattern("^[\\u00e0-\\u00ff]+$", ["éà"], ["e", "ā"])
    pattern("^[\\ud83d\\ude00]$", ["😀"], ["x"])
    pattern("^\"[^\"]*\"$", ["\"quoted\"", "\"\""], ["quoted", "\"a\"b\""])
    pattern("^\\\\+$", ["\\", "\\\\"], ["/"])
    pattern("^line\\nnext\\t$", ["line\nnext\t"], ["linennextt"])
    pattern("^[\\x00-\\x1f]$", ["\u0000", "\n", "\u001f"], [" ", "a"])
    pattern("^{\\d+}$", ["{12}"], ["12"])
    pattern("^(a{2}){2,3}$", ["aaaa", "aaaaaa"], ["aa", "aaa", "aaaaaaaa"])
    pattern("^[0-9]+(\\.[0-9]+)*(-[a-z0-9]+)?$", ["1", "1.2.3", "1.0-beta2"], ["1.", ".1", "1-"])
    pattern("^#[0-9a-fA-F]{6}$", ["#00ffAA"], ["00ffAA", "#00ffA", "#00ffAAA"])
    pattern("^(GET|POST|PUT)( /[a-z]*)+$", ["GET /a", "PUT /a /b"], ["GET", "DELETE /a"])
    case("pattern with lengths", {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 5}, ["ab", "abcde"], ["a", "abcdef", "AB"])
    case("pattern with a long limit", {"type": "string", "pattern": "^[a-z_]+$", "maxLength": 64}, ["a", "a" * 64], ["", "a" * 65])
    case("two patterns", {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}]}, ["az", "abcz"], ["a", "z", "za"])
    case("pattern beside other types", {"pattern": "^a$"}, ["a", 1, None], ["b"])
    refused("pattern against length", {"type": "string", "pattern": "^a{5}$", "maxLength": 3}, "#: no text")
    refused("back reference", {"type": "string", "pattern": "^(a)\\1$"}, "#/pattern")
    refused("look-ahead", {"type": "string", "pattern": "^(?=a)"}, "#/pattern")
    refused("word boundary", {"type": "string", "pattern": "\\bfoo\\b"}, "#/pattern")
    refused("open group", {"type": "string", "pattern": "(a"}, "#/pattern")
    refused("too many states", {"type": "string", "pattern": "^(a{1000}){1000}$"}, "#")
    refused("pattern is a number", {"pattern": 5}, "#/pattern")


def formats():
    def form(name, accept, reject, narrowed=()):
        case("format " + name, {"type": "string", "format": name}, accept, reject, narrowed=list(narrowed))

    form("date", ["2024-02-29", "1999-12-31", "2000-02-29", "0001-01-01"], ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "2024-1-1", "24-01-01", "2024-01-01T00:00:00Z", ""])
    form("time", ["12:34:56Z", "00:00:00+00:00", "23:59:59.123-11:30"], ["24:00:00Z", "12:60:00Z", "12:34Z", "12:34:56+24:00"])
    form("date-time", ["2024-02-29T12:34:56Z", "1985-04-12T23:20:50.52+02:00"], ["2024-02-30T12:34:56Z", "2024-02-29", "2024-02-29T12:34:56"], ["2024-02-29 12:34:56Z"])
    form("duration", ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P3W", "PT1H30M"], ["P", "1D", "PT", "P1H", "PT1D"])
    form("uuid", ["123e4567-e89b-12d3-a456-426614174000", "AAAAAAAA-0000-FFFF-0000-aaaaaaaaaaaa"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400", "g23e4567-e89b-12d3-a456-426614174000"])
    form("email", ["a@b.co", "first.last+tag@sub.example.org", "o'brien@x-y.net"], ["a", "a@", "@b.co", "a@b", "a b@c.de", "a..b@c.de", "a@-b.co"])
    form("hostname", ["localhost", "example.com", "a-b.c1.org"], ["-a.com", "a_b.com", "a..b", ""])
    form("ipv4", ["0.0.0.0", "255.255.255.255", "192.168.1.10"], ["256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4"])
    form("ipv6", ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "fe80::"], ["1:2:3:4:5:6:7", "1::2::3", "12345::", "g::"])
    form("uri", ["https://example.com", "http://a.b:8080/c/d?e=f#g", "ftp://files.net/x%20y"], ["example.com", "http://a b"], ["mailto:a@b.co", "http://"])
    case("format beside pattern", {"type": "string", "format": "date", "pattern": "^2024-"}, ["2024-05-06"], ["2023-05-06"])
    case("format beside other types", {"format": "uuid"}, [1, None, [], "123e4567-e89b-12d3-a456-426614174000"], ["x"])
    case("optional date", {"anyOf": [{"type": "string", "format": "date"}, NULL]}, ["2024-01-01", None], ["", 0])
    for name in ("regex", "json-pointer", "idn-email", "iri", "byte", "nonsense"):
        refused("format " + name, {"type": "string", "format": name}, "#/format")


def objects():
    ab = {"a": INTEGER, "b": STRING}
    case("two members", obj(ab), [{"a": 1, "b": "x"}], [{}, {"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}, {"a": 1, "b": "x", "c": 0}], narrowed=[{"b": "x", "a": 1}],
         accept_text=['{"a":1,"b":"x"}', '{ "a": 1, "b": "x" }', '{\n  "a": 1,\n  "b": "x"\n}', '{\n\t"a": 1,\n\t"b": "x"\n}'],
         reject_text=['{"a":1 ,"b":"x"}', '{"a" :1,"b":"x"}', '{"a":1,"b":"x",}', '{"a":1,,"b":"x"}', '{  "a":1,"b":"x"}', '{"a":1,"b":"x"}\n', '{\n\n"a":1,"b":"x"}'])
    case("optional first", obj(ab, ["b"]), [{"b": "x"}, {"a": 1, "b": "x"}], [{"a": 1}, {}])
    case("optional last", obj(ab, ["a"]), [{"a": 1}, {"a": 1, "b": ""}], [{"b": "x"}, {}])
    case("all optional", obj(ab, []), [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}], [{"c": 1}, {"a": "x"}], accept_text=["{ }", "{\n}"], reject_text=["{,}", '{"a":1,}'])
    five = {k: INTEGER for k in "abcde"}
    case("five, two required", obj(five, ["b", "d"]), [{"b": 1, "d": 2}, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, {"a": 1, "b": 1, "d": 1}, {"b": 1, "d": 1, "e": 1}], [{"b": 1}, {"a": 1, "d": 1}, {"b": 1, "d": 1, "f": 1}])
    case("no members", obj({}), [{}], [{"a": 1}, [], None])
    case("open object", {"type": "object"}, [{}, {"a": 1}, {"x": {"y": [1, None]}, "z": "s"}], [[], None, 1])
    case("additional by default", {"type": "object", "properties": {"a": INTEGER}}, [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": [], "c": None}], [{"a": "x"}, {"b": 1, "a": "x"}], narrowed=[{"b": 1, "a": 1}])
    case("additional true", obj({"a": INTEGER}, ["a"], True), [{"a": 1}, {"a": 1, "é\"": 2}, {"a": 1, "aa": "s", "": None}], [{}, {"b": 1}])
    case("additional schema", obj({"a": STRING}, [], INTEGER), [{}, {"a": "x"}, {"a": "x", "n": 1, "m": 2}, {"n": 1}], [{"a": 1}, {"n": "x"}, {"a": "x", "n": None}])
    case("map", {"type": "object", "additionalProperties": NUMBER}, [{}, {"x": 1.5}, {"x": 1, "y": -2}], [{"x": "1"}, {"x": None}])
    case("names with escapes", obj({"a\"b": INTEGER, "c\\d": INTEGER, "e\n": INTEGER, "ü": INTEGER, "": INTEGER}), [{"a\"b": 1, "c\\d": 2, "e\n": 3, "ü": 4, "": 5}], [{}, {"a\"b": 1}])
    case("names that begin alike", obj({"na": INTEGER, "name": STRING, "names": {"type": "array"}}, ["name"]), [{"name": "x"}, {"na": 1, "name": "x", "names": []}], [{"na": 1}, {"name": 1}, {"nam": 1, "name": "x"}])
    case("extra names that begin alike", obj({"name": STRING}, ["name"], BOOLEAN), [{"name": "x", "nam": True, "names": False, "n": True}], [{"name": "x", "nam": "y"}])
    case("required without properties", {"type": "object", "required": ["a", "b"]}, [{"a": 1, "b": None}, {"a": 1, "b": 2, "c": 3}], [{}, {"a": 1}, {"b": 1}])
    case("required beside properties", {"type": "object", "properties": {"b": STRING}, "required": ["a", "b"]}, [{"b": "x", "a": [1]}], [{"b": "x"}, {"b": 1, "a": 1}])
    case("nested", obj({"p": obj({"q": obj({"r": BOOLEAN})})}), [{"p": {"q": {"r": True}}}], [{"p": {}}, {"p": {"q": {}}}, {"p": {"q": {"r": 1}}}])
    case("pattern properties", {"type": "object", "patternProperties": {"^x-": STRING, "\\d$": INTEGER}, "additionalProperties": False},
         [{}, {"x-a": "s"}, {"b1": 2}, {"x-a": "s", "a9": 0}], [{"a": 1}, {"x-a": 1}, {"b1": "s"}, {"x-1": "s"}, {"x-1": 1}])
    case("pattern and named properties", {"type": "object", "properties": {"x-id": {"minLength": 1}}, "patternProperties": {"^x-": STRING}, "additionalProperties": NULL},
         [{"x-id": "a"}, {"x-id": "a", "x-b": "", "other": None}], [{"x-id": ""}, {"x-id": 1}, {"other": 1}, {"x-b": 2}])
    case("property names", {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": INTEGER}, [{}, {"a": 1, "xyz": 2}], [{"A": 1}, {"abcd": 1}])
    case("property names of an enum", {"type": "object", "propertyNames": {"enum": ["k", "l"]}}, [{}, {"k": 1}, {"l": None, "k": 2}], [{"m": 1}])
    case("property names that are strings", {"type": "object", "propertyNames": STRING, "additionalProperties": BOOLEAN}, [{}, {"é": True}], [{"a": 1}])
    case("at least one", {"type": "object", "minProperties": 1, "additionalProperties": INTEGER}, [{"a": 1}, {"a": 1, "b": 2}], [{}])
    case("at least one of two", obj(ab, [], False, minProperties=1), [{"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}], [{}])
    case("at most two", obj(ab, [], False, maxProperties=2), [{}, {"a": 1, "b": "x"}], [{"c": 1}])
    case("at most none", {"type": "object", "maxProperties": 0}, [{}], [{"a": 1}])
    case("forbidden member", {"type": "object", "properties": {"a": INTEGER, "b": False}}, [{}, {"a": 1}, {"a": 1, "c": 2}], [{"b": 1}])
    case("unevaluated false", {"type": "object", "properties": ab, "unevaluatedProperties": False}, [{}, {"a": 1}], [{"c": 1}])
    case("many members", obj({f"field_{i}": INTEGER for i in range(60)}, ["field_0", "field_59"]), [{"field_0": 1, "field_59": 2}, {f"field_{i}": i for i in range(60)}], [{"field_0": 1}, {"field_60": 1}])
    refused("required and forbidden", {"type": "object", "properties": {"a": False}, "required": ["a"]}, "#: no text")
    refused("required beside closed", {"type": "object", "required": ["a"], "additionalProperties": False}, "#: no text")
    refused("at least two extras", {"type": "object", "minProperties": 2}, "#/minProperties")
    refused("at most one of two", obj(ab, [], False, maxProperties=1), "#/maxProperties")
    refused("dependent required", {"dependentRequired": {"a": ["b"]}}, "#/dependentRequired")
    refused("properties is a list", {"properties": []}, "#/properties")
    refused("member is no schema", {"properties": {"a": 5}}, "#/properties")
    refused("required is a name", {"required": "a"}, "#/required")


def arrays():
    case("array of integers", {"type": "array", "items": INTEGER}, [[], [1], [1, -2, 3]], [["a"], [1, None], {}],
         accept_text=["[ 1, 2 ]", "[\n  1,\n  2\n]", "[ ]"], reject_text=["[,1]", "[1,]", "[1 ,2]", "[1  ]"])
    case("array of anything", {"type": "array"}, [[], [1, "a", [None]], [{}]], [{}])
    case("at least 2", {"type": "array", "items": INTEGER, "minItems": 2}, [[1, 2], [1, 2, 3, 4]], [[], [1]])
    case("at most 2", {"type": "array", "items": INTEGER, "maxItems": 2}, [[], [1], [1, 2]], [[1, 2, 3]])
    case("exactly 3", {"type": "array", "items": NUMBER, "minItems": 3, "maxItems": 3}, [[0.5, 1, 2]], [[], [1, 2], [1, 2, 3, 4]])
    case("0 items", {"type": "array", "maxItems": 0}, [[]], [[1]])
    case("1 item", {"type": "array", "items": STRING, "minItems": 1, "maxItems": 1}, [["a"]], [[], ["a", "b"]])
    case("20 to 30", {"type": "array", "items": INTEGER, "minItems": 20, "maxItems": 30}, [[1] * 20, [2] * 30, [3] * 25], [[1] * 19, [1] * 31, []])
    case("at least 12", {"type": "array", "items": BOOLEAN, "minItems": 12}, [[True] * 12, [False] * 40], [[True] * 11])
    case("at most 100", {"type": "array", "items": INTEGER, "maxItems": 100}, [[], [5] * 9, [1] * 100], [[1] * 101])
    case("pair", {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2}, [["a", 1]], [["a"], [1, "a"], ["a", 1, 2]])
    case("open pair", {"type": "array", "prefixItems": [STRING, INTEGER]}, [[], ["a"], ["a", 1], ["a", 1, None, {}]], [[1], ["a", "b"]])
    case("pair and the rest", {"type": "array", "prefixItems": [STRING], "items": INTEGER, "minItems": 2, "maxItems": 3}, [["a", 1], ["a", 1, 2]], [["a"], ["a", "b"], ["a", 1, 2, 3]])
    case("draft 4 tuple", {"type": "array", "items": [STRING, INTEGER], "additionalItems": False}, [[], ["a"], ["a", 1]], [["a", 1, 2], [1]])
    case("draft 4 tuple, open", {"type": "array", "items": [STRING], "additionalItems": BOOLEAN}, [["a"], ["a", True]], [["a", 1]])
    case("arrays of arrays", {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}}, [[], [[]], [[1], [2, 3]]], [[1], [[1, 2, 3]]])
    case("matrix", {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": NUMBER}}, [[[1, 0], [0, 1]]], [[[1, 0]], [[1], [0, 1]]])
    case("objects", {"type": "array", "items": obj({"id": INTEGER})}, [[], [{"id": 1}, {"id": 2}]], [[{}], [{"id": "a"}]])
    case("no elements", {"type": "array", "items": False}, [[]], [[1]])
    case("unique off", {"type": "array", "uniqueItems": False, "items": INTEGER}, [[1, 1]], ["a"])
    case("unevaluated items", {"type": "array", "prefixItems": [INTEGER], "unevaluatedItems": False}, [[], [1]], [[1, 2]])
    case("length of arrays beside other types", {"maxItems": 1}, [[], [1], 5, "aa"], [[1, 2]])
    refused("unique", {"type": "array", "uniqueItems": True}, "#/uniqueItems")
    refused("contains", {"contains": INTEGER}, "#/contains")
    refused("too few and too many", {"type": "array", "minItems": 3, "maxItems": 2}, "#: no text")
    refused("prefix is an object", {"prefixItems": {}}, "#/prefixItems")
    refused("items is a number", {"items": 3}, "#/items")
    refused("at least one of none", {"type": "array", "items": False, "minItems": 1}, "#: no text")


def combinations():
    case("anyOf types", {"anyOf": [STRING, INTEGER]}, ["a", 1], [None, 1.5, []])
    case("anyOf with siblings", {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 10}]}, [1, 3, 10, 100], [4, 9, "a"])
    case("anyOf overlapping objects", {"anyOf": [obj({"a": INTEGER}), obj({"a": INTEGER, "b": STRING})]}, [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"b": "x"}, {"a": 1, "b": 2}])
    case("anyOf by kind", {"anyOf": [obj({"kind": {"const": "cat"}, "lives": INTEGER}), obj({"kind": {"const": "dog"}, "bark": STRING})]},
         [{"kind": "cat", "lives": 9}, {"kind": "dog", "bark": "woof"}], [{"kind": "cat", "bark": "x"}, {"kind": "cow"}, {"kind": "dog"}])
    case("anyOf overlapping strings", {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^a+$"}]}, ["", "xyz", "aaaaaa"], ["xyza", "aaab"])
    case("anyOf one impossible", {"anyOf": [False, STRING]}, ["a"], [1])
    case("anyOf nested", {"anyOf": [{"anyOf": [NULL, BOOLEAN]}, {"anyOf": [INTEGER, {"anyOf": [STRING]}]}]}, [None, True, 1, "a"], [1.5, [], {}])
    case("oneOf types", {"oneOf": [STRING, NULL, {"type": "array"}]}, ["a", None, [1]], [1, {}])
    case("oneOf by const", {"oneOf": [obj({"t": {"const": "a"}, "v": INTEGER}), obj({"t": {"const": "b"}, "v": STRING})]}, [{"t": "a", "v": 1}, {"t": "b", "v": "x"}], [{"t": "a", "v": "x"}, {"t": "c", "v": 1}])
    case("oneOf by enum", {"oneOf": [obj({"t": {"enum": ["a", "b"]}}), obj({"t": {"enum": ["c"]}, "n": INTEGER})]}, [{"t": "a"}, {"t": "c", "n": 1}], [{"t": "c"}])
    case("oneOf by range", {"oneOf": [{"type": "integer", "maximum": 4}, {"type": "integer", "minimum": 5}]}, [0, 4, 5, 9], ["a", 4.5])
    case("oneOf by pattern", {"type": "string", "oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}, ["ax", "bx"], ["cx", ""])
    case("oneOf by length", {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 4}]}, ["ab", "abcd"], ["abc"])
    case("oneOf by closed objects", {"oneOf": [obj({"a": INTEGER}), obj({"b": INTEGER})]}, [{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}, {}])
    case("oneOf by tuple", {"oneOf": [{"type": "array", "prefixItems": [{"const": "x"}], "minItems": 1}, {"type": "array", "prefixItems": [{"const": "y"}], "minItems": 1}]}, [["x"], ["y", 1]], [["z"], []])
    case("oneOf alone", {"oneOf": [INTEGER]}, [1], ["a"])
    refused("oneOf overlapping types", {"oneOf": [INTEGER, NUMBER]}, "#/oneOf")
    refused("oneOf overlapping objects", {"oneOf": [obj({"a": INTEGER}, ["a"], True), obj({"b": INTEGER}, ["b"], True)]}, "#/oneOf")
    refused("oneOf overlapping strings", {"oneOf": [STRING, {"type": "string", "minLength": 1}]}, "#/oneOf")
    case("allOf objects", {"allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}, "required": ["b"]}]},
         [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": None}], [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}])
    case("allOf same member", {"allOf": [obj({"n": {"type": "integer", "minimum": 0}}, None, None), obj({"n": {"maximum": 10}}, None, None)]}, [{"n": 0}, {"n": 10}], [{"n": -1}, {"n": 11}, {}])
    case("allOf closed by one", {"allOf": [obj({"a": INTEGER, "b": INTEGER}, []), {"required": ["a"]}]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 2}, {"a": 1, "c": 3}])
    case("allOf numbers", {"allOf": [INTEGER, {"minimum": 3}, {"maximum": 6}, {"minimum": 4}]}, [4, 5, 6], [3, 7, 4.5])
    case("allOf with anyOf", {"allOf": [{"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, NULL]}]}, [1, 0], ["a", None])
    case("allOf arrays", {"allOf": [{"type": "array", "items": INTEGER}, {"minItems": 1, "items": {"minimum": 5}}]}, [[5], [6, 7]], [[], [4], ["a"]])
    case("allOf tuples", {"allOf": [{"type": "array", "prefixItems": [STRING]}, {"items": {"type": ["string", "integer"]}}]}, [["a", 1], []], [[1], ["a", None]])
    case("allOf enums", {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]}, ["b", "c"], ["a", "d"])
    case("allOf and additional schemas", {"allOf": [{"type": "object", "additionalProperties": {"type": ["integer", "string"]}}, {"additionalProperties": {"type": ["integer", "null"]}}]}, [{}, {"a": 1}], [{"a": "x"}, {"a": None}])
    case("allOf alone", {"allOf": [STRING]}, ["a"], [1])
    refused("allOf of two types", {"allOf": [STRING, INTEGER]}, "#: no text")
    refused("not", {"not": STRING}, "#/not")
    refused("if", {"if": STRING, "then": {"minLength": 1}}, "#/if")
    refused("unknown keyword", {"type": "string", "minLenght": 3}, "#/minLenght")
    refused("unknown type", {"type": "text"}, "#/type")
    refused("anyOf empty", {"anyOf": []}, "#/anyOf")
    refused("anyOf is an object", {"anyOf": {}}, "#/anyOf")
    refused("deep keyword", {"properties": {"a": {"items": {"not": {}}}}}, "#/properties/a/items/not")


def references():
    case("definition", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 1}}}, [1, 20], [0, "a"])
    case("draft 7 definition", {"$ref": "#/definitions/n", "definitions": {"n": STRING}}, ["a"], [1])
    case("two uses", obj({"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}}, None, False, **{"$defs": {"p": obj({"x": NUMBER, "y": NUMBER})}}),
         [{"a": {"x": 0, "y": 1.5}, "b": {"x": -1, "y": 2}}], [{"a": {"x": 0}, "b": {"x": 1, "y": 1}}])
    case("reference with siblings", {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "minimum": 1}}}, [1, 5], [0, 6])
    case("chain of references", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": BOOLEAN}}, [True], [1])
    case("escaped pointer", {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": INTEGER}}, [1], ["a"])
    case("percent in pointer", {"$ref": "#/$defs/a%20b", "$defs": {"a b": INTEGER}}, [1], ["a"])
    case("anchor", {"$ref": "#leaf", "$defs": {"x": {"$anchor": "leaf", "type": "null"}}}, [None], [1])
    case("reference into properties", obj({"a": INTEGER, "b": {"$ref": "#/properties/a"}}), [{"a": 1, "b": 2}], [{"a": 1, "b": "x"}])
    tree = {"type": "object", "properties": {"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["value", "children"], "additionalProperties": False}
    case("tree", tree, [{"value": 1, "children": []}, {"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": []}]}]}], [{"value": 1}, {"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [1]}])
    case("linked list", {"$ref": "#/$defs/node", "$defs": {"node": {"anyOf": [NULL, obj({"head": STRING, "tail": {"$ref": "#/$defs/node"}})]}}},
         [None, {"head": "a", "tail": None}, {"head": "a", "tail": {"head": "b", "tail": None}}], [{"head": "a"}, {"head": 1, "tail": None}, {"head": "a", "tail": {}}])
    case("expression", {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [NUMBER, obj({"op": {"enum": ["+", "*"]}, "args": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 2, "maxItems": 2}})]}}},
         [1, {"op": "+", "args": [1, {"op": "*", "args": [2, 3.5]}]}], [{"op": "-", "args": [1, 2]}, {"op": "+", "args": [1]}])
    case("two schemas that need each other", {"$ref": "#/$defs/a", "$defs": {"a": obj({"b": {"$ref": "#/$defs/b"}}, []), "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
         [{}, {"b": []}, {"b": [{}, {"b": []}]}], [{"b": {}}, {"b": [[]]}])
    case("JSON of its own", {"$defs": {"j": {"anyOf": [STRING, NUMBER, BOOLEAN, NULL, {"type": "array", "items": {"$ref": "#/$defs/j"}}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/j"}}]}}, "$ref": "#/$defs/j"},
         [None, [1, [2]], {"a": {"b": [None, "c"]}}], reject_text=["[1", "{\"a\"}"])
    case("allOf with a base", {"$defs": {"base": {"type": "object", "properties": {"id": INTEGER}, "required": ["id"]}}, "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": STRING}, "required": ["name"]}]},
         [{"id": 1, "name": "x"}], [{"id": 1}, {"name": "x"}])
    refused("nothing there", {"$ref": "#/$defs/missing"}, "#/$ref")
    refused("another document", {"$ref": "https://example.com/schema.json"}, "#/$ref")
    refused("itself", {"$ref": "#"}, "#/$ref")
    refused("two that are each other", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#/$defs/")
    refused("a choice that is itself", {"anyOf": [{"$ref": "#"}, STRING]}, "#")
    refused("an object without an end", obj({"next": {"$ref": "#"}}), "#: no text")
    refused("reference to a number", {"$ref": "#/$defs/n/minimum", "$defs": {"n": {"minimum": 3}}}, "#/$defs/n/minimum")


def practice():
    case("weather tool", obj({"location": {"type": "string", "description": "City"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["location"]),
         [{"location": "Paris"}, {"location": "São Paulo, BR", "unit": "celsius"}], [{"unit": "celsius"}, {"location": "x", "unit": "kelvin"}])
    case("strict steps", obj({"steps": {"type": "array", "items": obj({"explanation": STRING, "output": STRING})}, "final_answer": STRING}),
         [{"steps": [], "final_answer": "x = 1"}, {"steps": [{"explanation": "a", "output": "b"}], "final_answer": ""}], [{"steps": [{}], "final_answer": ""}, {"final_answer": "x"}])
    case("edit file tool", obj({"path": STRING, "edits": {"type": "array", "minItems": 1, "items": obj({"old": STRING, "new": STRING, "all": {"type": "boolean", "default": False}}, ["old", "new"])}}),
         [{"path": "/a/b.c", "edits": [{"old": "x\ny", "new": "\tz"}]}, {"path": "", "edits": [{"old": "", "new": "", "all": True}, {"old": "a", "new": "b"}]}], [{"path": "a", "edits": []}, {"path": "a"}])
    case("shell tool", {"$schema": "http://json-schema.org/draft-07/schema#", **obj({"command": STRING, "timeout": {"type": "number", "maximum": 600000}, "description": STRING}, ["command"])},
         [{"command": "ls -la | grep \"x\""}, {"command": "a", "timeout": 5000, "description": "d"}], [{"timeout": 1}, {"command": "a", "timeout": 600001}])
    case("todo tool", obj({"todos": {"type": "array", "items": obj({"content": {"type": "string", "minLength": 1}, "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]}, "id": STRING})}}),
         [{"todos": [{"content": "a", "status": "pending", "id": "1"}]}], [{"todos": [{"content": "", "status": "pending", "id": "1"}]}, {"todos": [{"content": "a", "status": "done", "id": "1"}]}])
    case("person", obj({"name": {"type": "string", "minLength": 1, "maxLength": 80}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"}, "born": {"anyOf": [{"type": "string", "format": "date"}, NULL]}, "tags": {"type": "array", "items": STRING, "maxItems": 5}}),
         [{"name": "Zoë", "age": 33, "email": "z@x.org", "born": None, "tags": []}], [{"name": "", "age": 33, "email": "z@x.org", "born": None, "tags": []}, {"name": "a", "age": 151, "email": "z@x.org", "born": None, "tags": []}])
    case("interface", {"$ref": "#/$defs/ui", "$defs": {"ui": obj({"type": {"enum": ["div", "button"]}, "label": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/ui"}}, "attributes": {"type": "array", "items": obj({"name": STRING, "value": STRING})}})}},
         [{"type": "div", "label": "", "children": [{"type": "button", "label": "ok", "children": [], "attributes": [{"name": "id", "value": "b"}]}], "attributes": []}], [{"type": "span", "label": "", "children": [], "attributes": []}])
    case("query", obj({"table": {"enum": ["orders", "customers"]}, "columns": {"type": "array", "items": {"enum": ["id", "status", "date"]}, "minItems": 1}, "where": {"type": "array", "items": obj({"column": STRING, "op": {"enum": ["=", ">", "<=", "!="]}, "value": {"type": ["string", "number", "null"]}})}, "limit": {"type": "integer", "minimum": 1, "maximum": 1000}}, ["table", "columns"]),
         [{"table": "orders", "columns": ["id"]}, {"table": "orders", "columns": ["id", "date"], "where": [{"column": "date", "op": "<=", "value": None}], "limit": 1000}], [{"table": "orders", "columns": []}, {"table": "orders", "columns": ["id"], "limit": 1001}])
    case("GeoJSON point", obj({"type": {"const": "Point"}, "coordinates": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 3}}), [{"type": "Point", "coordinates": [1.5, -2]}], [{"type": "Point", "coordinates": [1]}, {"type": "Line", "coordinates": [1, 2]}])
    case("zod record", {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "propertyNames": STRING, "additionalProperties": obj({"n": INTEGER})}, [{}, {"a": {"n": 1}}], [{"a": 1}])
    case("pydantic", {"$defs": {"Color": {"enum": ["r", "g"], "title": "Color", "type": "string"}}, "properties": {"color": {"$ref": "#/$defs/Color"}, "size": {"anyOf": [INTEGER, NULL], "default": None, "title": "Size"}}, "required": ["color"], "title": "Model", "type": "object"},
         [{"color": "r"}, {"color": "g", "size": None}, {"color": "g", "size": 3, "more": 1}], [{"color": "b"}, {"size": 1}, {"color": "r", "size": "x"}])
    case("MCP search", obj({"query": {"type": "string", "minLength": 1}, "limit": {"type": "integer", "default": 10, "minimum": 1, "maximum": 50}, "sort": {"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "filters": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}}, ["query"], False),
         [{"query": "x"}, {"query": "x", "limit": 50, "sort": "desc", "filters": {"lang": "c++", "stars": 5}}], [{"query": ""}, {"query": "x", "limit": 51}, {"query": "x", "filters": {"a": None}}])


def combinations_by_program():
    """Objects of every mixture of kinds and of required members, for breadth."""
    kinds = [("s", STRING, "x", 1), ("i", INTEGER, 3, "x"), ("n", NUMBER, 0.5, None), ("b", BOOLEAN, False, 0), ("l", {"type": "array", "items": INTEGER}, [1], [None]), ("e", {"enum": ["u", "v"]}, "v", "w"),
             ("d", {"type": "string", "format": "date"}, "2024-01-31", "2024-01-32"), ("o", obj({"k": INTEGER}, []), {"k": 1}, {"j": 1})]
    for i in range(len(kinds)):
        a, b, c = (kinds[(i + k) % len(kinds)] for k in (0, 3, 5))
        names = [a[0], b[0] + "2", c[0] + "_3"]
        schema = obj({names[0]: a[1], names[1]: b[1], names[2]: {"anyOf": [c[1], NULL]}}, [names[i % 3]], i % 2 == 0)
        full = {names[0]: a[2], names[1]: b[2], names[2]: c[2]}
        only = {names[i % 3]: full[names[i % 3]]}
        wrong = dict(full)
        wrong[names[1]] = b[3]
        missing = {k: v for k, v in full.items() if k != names[i % 3]}
        case("mixture " + "".join(k[0] for k in (a, b, c)), schema, [full, only, {**full, names[2]: None}], [wrong, missing, [full]])


for family in (types, literals, numbers, strings, patterns, formats, objects, arrays, combinations, references, practice, combinations_by_program):
    family()
assert len({c["name"] for c in CASES}) == len(CASES), "names"
sys.stdout.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in CASES) + "\n]\n")
print(len(CASES), "cases,", sum("refused" in c for c in CASES), "refused", file=sys.stderr)
