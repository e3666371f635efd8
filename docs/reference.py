"""Write docs/config.md, the reference of config.yaml, from the schema."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# config.yaml

Generated from `workflow/schemas/config.schema.yaml` by `make format`; edit that file.

Values are null, booleans, numbers, texts, and flat lists of these. A boolean reaches the program as `--name` or
`--no-name`, a list as `--name a b`, null as no flag, anything else as `--name=value`. Unquoted `1e-3` is a number;
quoted text stays text. A single top-level value can be set for one call: `snakemake --config seeds=5 …`.

"""


def main() -> None:
    """Write the reference."""
    (ROOT / "docs" / "config.md").write_text(render(), encoding="utf-8")


def render() -> str:
    """Return the reference as Markdown."""
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
    parts = [HEAD]
    for name, about in schema["properties"].items():
        parts.append(entry(f"## `{name}`", about, name in schema["required"]))
        parts += [
            entry(f"### `{name}.{key}`", inner, key in about.get("required", []))
            for key, inner in about.get("properties", {}).items()
        ]
    return "\n".join(parts)


def entry(head: str, about: dict, required: bool) -> str:
    """Return one key's part."""
    lines = [head, "", about["description"].strip(), ""]
    if required:
        lines += ["Required.", ""]
    if "enum" in about:
        lines += ["One of: " + ", ".join(f"`{value}`" for value in about["enum"]) + ".", ""]
    if "default" in about:
        lines += [f"Default: `{flow(about['default'])}`.", ""]
    if "examples" in about:
        lines += ["For example: " + "; ".join(f"`{flow(value)}`" for value in about["examples"]) + ".", ""]
    return "\n".join(lines)


def flow(value: object) -> str:
    """Write a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...").strip()


if __name__ == "__main__":
    main()
