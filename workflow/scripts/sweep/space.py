"""Expand a space into its combinations: grid, zip, random, exclude, defaults."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sweep import naming
from sweep.errors import SweepError
from sweep.naming import Value


class Combination(NamedTuple):
    """One assignment of the hyperparameters.

    Attributes:
        names: hyperparameters, sorted.
        values: their values, in the same order.
        pairs: `name=text` of those that stand in the path, in full, joined by `/`; the identity.
        path: `pairs`, folded where they would grow too long.
    """

    names: tuple[str, ...]
    values: tuple[Value, ...]
    pairs: str
    path: str


@dataclass
class Random:
    """Points drawn at random, `n` of them, crossed with the grid.

    Attributes:
        ranges: name → (kind, arguments); kinds are uniform, loguniform, int and choice.
        stratified: draw each axis as a scrambled low-discrepancy sequence.
    """

    n: int
    seed: int
    ranges: dict[str, tuple[str, list]]
    stratified: bool = False


@dataclass
class Space:
    """What `config.yaml` asks for, checked name by name but not yet expanded."""

    grids: list[dict[str, list[Value]]] = field(default_factory=lambda: [{}])
    zips: list[dict[str, list[Value]]] = field(default_factory=list)
    random: Random | None = None
    exclude: list[dict[str, Value]] = field(default_factory=list)
    defaults: dict[str, Value] = field(default_factory=dict)


def expand(space: Space, omitted: dict[str, Value]) -> tuple[list[Combination], list[str]]:
    """Expand a space.

    Args:
        space: the space.
        omitted: what the absence of a hyperparameter in a path means; pairs equal to it are left out.

    Returns:
        The combinations in the config's order, each once, and notes about repeated ones.

    Raises:
        SweepError: an exclude matches nothing, nothing is left, or two combinations share a path.
    """
    rules = [_exclude_rule(number, rule) for number, rule in enumerate(space.exclude)]
    used = [False] * len(rules)
    known: set[str] = set()
    combinations: dict[str, Combination] = {}
    repeated: dict[str, None] = {}
    for block in _blocks(space):
        names = tuple(sorted(name for axis in block for name in axis[0].names))
        known.update(names)
        for combination in _product(block, names, omitted):
            if rules and _excluded(combination, rules, used):
                continue
            key = _command_line(combination.pairs, omitted)
            if key in combinations:
                repeated[combination.pairs] = None
            else:
                combinations[key] = combination
    for (number, rule), hit in zip(rules, used, strict=True):
        for name in rule:
            if name not in known:
                raise SweepError(
                    f"exclude[{number}].{name}: no such hyperparameter; there are: {', '.join(sorted(known))}"
                )
        if not hit:
            raise SweepError(
                f"exclude[{number}]: {_show(space.exclude[number])} matches no combination; remove it or mend it"
            )
    if not combinations:
        raise SweepError("exclude: leaves no combination to run; remove one of its items")
    _check_paths(combinations)
    notes = []
    if repeated:
        count, one = len(repeated), next(iter(repeated))
        notes.append(
            f"{count} combination{'s are' if count > 1 else ' is'} asked for more than once and run "
            f"once (for one: {one or 'all defaults'})"
        )
    return list(combinations.values()), notes


class _Choice(NamedTuple):
    """One value of an axis: a single hyperparameter's, or a row of several (zip, random)."""

    names: tuple[str, ...]
    values: tuple[Value, ...]


def _blocks(space: Space) -> Iterator[list[list[_Choice]]]:
    """Yield one list of axes per mapping of the grid."""
    common = [
        [_Choice(tuple(group), row) for row in zip(*group.values(), strict=True)] for group in space.zips
    ]
    if space.random:
        common.append(_draw(space.random))
    for grid in space.grids:
        axes = [[_Choice((name,), (value,)) for value in values] for name, values in grid.items()]
        axes += common
        named = {name for axis in axes for name in axis[0].names}
        axes += [[_Choice((n,), (v,))] for n, v in space.defaults.items() if n not in named]
        yield axes


def _product(
    axes: list[list[_Choice]], names: tuple[str, ...], omitted: dict[str, Value]
) -> Iterator[Combination]:
    """Yield the axes' product. The text of every value is written once, not once per combination."""
    left_out = {naming.to_pair(name, value) for name, value in omitted.items()}
    flat = [name for axis in axes for name in axis[0].names]
    order = [flat.index(name) for name in names]
    rows = []
    for axis in axes:
        row = []
        for choice in axis:
            pairs = map(naming.to_pair, choice.names, choice.values)
            row.append([(v, "" if p in left_out else p) for v, p in zip(choice.values, pairs, strict=True)])
        rows.append(row)
    for choices in itertools.product(*rows):
        cells = list(itertools.chain.from_iterable(choices))
        cells = [cells[place] for place in order]
        pairs = [pair for _, pair in cells if pair]
        yield Combination(names, tuple(value for value, _ in cells), "/".join(pairs), naming.fold(pairs))


def _command_line(pairs: str, omitted: dict[str, Value]) -> str:
    """Leave out of pairs what leaves no trace on the command line: null is no flag, like absence."""
    if "=null" not in pairs:
        return pairs
    kept = (p for p in pairs.split("/") if not p.endswith("=null") or p.removesuffix("=null") in omitted)
    return "/".join(kept)


def _exclude_rule(number: int, rule: dict[str, Value]) -> tuple[int, dict[str, str]]:
    return number, {name: naming.to_text(value) for name, value in rule.items()}


def _excluded(combination: Combination, rules: list, used: list[bool]) -> bool:
    values = dict(zip(combination.names, combination.values, strict=True))
    hit = False
    for index, (_, rule) in enumerate(rules):
        if all(name in values and naming.to_text(values[name]) == text for name, text in rule.items()):
            used[index] = hit = True  # and go on: two rules may match the same combination
    return hit


def _check_paths(combinations: dict[str, Combination]) -> None:
    paths: dict[str, str] = {}
    for combination in combinations.values():
        if (other := paths.setdefault(combination.path, combination.pairs)) != combination.pairs:
            raise SweepError(
                f"grid: two combinations share the path {combination.path}: {other} and {combination.pairs}; "
                "shorten a hyperparameter's name"
            )


def _draw(random: Random) -> list[_Choice]:
    """Draw the points. A coordinate depends on (seed, name, index) alone, so a larger `n` or a new axis
    keeps every point there was."""
    names = tuple(sorted(random.ranges))
    uniform = _stratified if random.stratified else _independent
    columns = [
        [_scale(*random.ranges[name], uniform(random.seed, name, index)) for index in range(random.n)]
        for name in names
    ]
    return [_Choice(names, row) for row in zip(*columns, strict=True)]


def _scale(kind: str, arguments: Sequence, u: float) -> Value:
    """Map u in [0, 1) to a value; floats are rounded to four significant digits."""
    if kind == "choice":
        return arguments[int(u * len(arguments))]
    low, high = arguments
    if kind == "int":
        return low + int(u * (high - low + 1))
    if kind == "loguniform":
        value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
    else:
        value = low + u * (high - low)
    return min(max(float(f"{value:.3e}"), float(low)), float(high))


def _bits(*key: object) -> int:
    """Hash a key to 32 bits, the same on every machine and Python version."""
    text = "/".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def _independent(seed: int, name: str, index: int) -> float:
    return _bits(seed, name, index) / 2**32


def _stratified(seed: int, name: str, index: int) -> float:
    """Return point `index` of a scrambled van der Corput sequence in base 2, one sequence per name.

    Every aligned block of 2^k points has one point in each interval of length 2^-k. The order of the points
    and their digits are both scrambled, so axes are independent of each other (nested uniform scrambling,
    Owen 1995; by hashes, Burley 2020, "Practical Hash-based Owen Scrambling", JCGT 9(4)).
    """
    order = _reverse(_scramble(_reverse(index), _bits(seed, name, "order")))
    return _reverse(_scramble(order, _bits(seed, name, "digits"))) / 2**32


def _scramble(number: int, seed: int) -> int:
    """Flip each of 32 bits by a coin that depends on the seed and on the bits below it alone.

    Laine and Karras 2011, "Stratified Sampling for Stochastic Transparency", EGSR, with the constants of
    Burley 2020.
    """
    for step in (0x3D20ADEA, None, 0x05526C56, 0x53A22864):
        if step is None:
            number = (number + seed) * (seed >> 16 | 1)
        else:
            number ^= number * step
        number &= 0xFFFFFFFF
    return number


def _reverse(number: int) -> int:
    return int(f"{number:032b}"[::-1], 2)


def _show(rule: dict[str, Value]) -> str:
    return ", ".join(naming.to_pair(name, value) for name, value in rule.items())
