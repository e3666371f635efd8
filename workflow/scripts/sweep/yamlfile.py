"""Read YAML the way its author meant it: strictly, safely, and naming the key in every complaint.

YAML 1.1, as PyYAML reads it, turns `1e-3` into text, `010` into 8 and `1:30` into 90, and lets the second
of two equal keys win without a word. Here `1e-3` is a number, quoted text is text, and what would surprise
is refused or told.
"""

import re
from pathlib import Path

import yaml

from sweep.errors import SweepError

_FLOAT = re.compile(
    r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII
)
_INT = re.compile(r"[-+]?(0|[1-9][\d_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)", re.ASCII)
_ODD_INT = re.compile(r"[-+]?0[\d_]+|[-+]?\d[\d_]*(:[0-5]?\d)+(\.\d*)?", re.ASCII)
_LONG = 1000  # digits; Python itself stops at 4,300
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?", re.ASCII)
_BOOLEAN = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
_NULL = {"", "~", "null", "Null", "NULL"}
_LOOKS_LIKE_NULL = {"None", "none", "nan", "NaN", "inf", "-inf"}
_TAGGED = re.compile(r"(?:&\S+\s+)?(!\S*)")

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> tuple[object, list[str]]:
    """Read one YAML document.

    Returns:
        The document, and warnings about values that may not be what was meant.

    Raises:
        SweepError: the file can't be read, is no YAML, or holds something that would be misread.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, Loader=_Loader)
    except OSError as error:
        raise SweepError(
            f"{path}: can't be read ({error.strerror}); create it, or name another with --configfile"
        ) from None
    except UnicodeDecodeError as error:
        raise SweepError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}, column {where.column + 1}:" if where else ""
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise SweepError(f"{path}:{line} no valid YAML: {what}") from None
    if node is None:
        return None, []
    reader = _Reader(path, text)
    return reader.build(node, ""), reader.warnings


class _Reader:
    """Turns YAML nodes into Python values, keeping track of the key for messages."""

    def __init__(self, path: Path, text: str):
        self.path = path
        self._text = text
        self.warnings: list[str] = []
        self._open: set[int] = set()

    def build(self, node: yaml.Node, key: str) -> object:
        # From the text: a node does not tell a tag that was written from one that PyYAML found by itself.
        if tag := _TAGGED.match(self._text, node.start_mark.index, node.end_mark.index):
            raise self._error(
                node, key, f"the tag {tag[1]} is not taken; write the value plainly, a text in quotes"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key)
        if id(node) in self._open:
            raise self._error(node, key, "refers to itself; write it out")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, key)
            return self._mapping(node, key)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict:
        result: dict = {}
        merged: dict = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, key, "a key must be plain text")
            name = key_node.value
            if name == "<<" and not key_node.style:
                parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for part in reversed(parts):
                    if not isinstance(part, yaml.MappingNode):
                        raise self._error(part, key, "'<<' takes a mapping, or a list of mappings")
                    merged.update(self._mapping(part, key))
                continue
            if name in result:
                raise self._error(
                    key_node, _join(key, name), "stands here a second time; keep one of the two"
                )
            result[name] = self.build(value_node, _join(key, name))
        return merged | result

    def _sequence(self, node: yaml.SequenceNode, key: str) -> list:
        items = [self.build(item, key) for item in node.value]
        pairs = list(zip(node.value, items, strict=True))
        booleans = [n.value for n, item in pairs if isinstance(item, bool)]
        odd = [word for word in booleans if word.lower() not in ("true", "false")]
        # `[true, "1"]` is meant; `[no, "flip"]` and `[true, flip]` hardly are.
        texts = [v for n, v in pairs if isinstance(v, str) and (odd or not n.style)]
        if booleans and texts:
            word = (odd or booleans)[0]
            raise self._error(
                node,
                key,
                f"'{word}' is read as the boolean {str(_BOOLEAN[word.lower()]).lower()}, beside the text "
                f"'{texts[0]}'; quote '{word}' if the word is meant, or quote the text if the boolean is",
            )
        return items

    def _scalar(self, node: yaml.ScalarNode, key: str) -> object:
        text = node.value
        if node.style:
            return text
        if text in _NULL:
            return None
        if text.lower() in _BOOLEAN and text in (text.lower(), text.capitalize(), text.upper()):
            value = _BOOLEAN[text.lower()]
            if text.lower() not in ("true", "false"):
                self.warnings.append(
                    f"{key}: '{text}' is read as the boolean {str(value).lower()}; "
                    f"write {str(value).lower()}, or quote it if the word is meant"
                )
            return value
        if _ODD_INT.fullmatch(text):
            raise self._error(
                node,
                key,
                f"'{text}' is read differently by different programs; "
                "write the plain number, or quote it if the text is meant",
            )
        if _INT.fullmatch(text):
            if len(text) > _LONG:
                raise self._error(
                    node,
                    key,
                    f"'{text[:10]}…' has {len(text)} digits, too many for a number; quote it if the text is meant",
                )
            return int(text.replace("_", ""), 0)
        if _FLOAT.fullmatch(text):
            return float(re.sub(r"\.(?=inf|nan)", "", text.replace("_", "").lower()))
        if _DATE.fullmatch(text):
            raise self._error(node, key, f"'{text}' is read as a date; quote it if the text is meant")
        if text in _LOOKS_LIKE_NULL:
            self.warnings.append(
                f"{key}: '{text}' is the text, not an empty value or a number; write null for 'not set', "
                "or quote it"
            )
        return text

    def _error(self, node: yaml.Node, key: str, what: str) -> SweepError:
        return SweepError(f"{self.path}: line {node.start_mark.line + 1}: {key or 'top level'}: {what}")


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
