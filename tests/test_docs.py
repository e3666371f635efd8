"""The documentation says what the code does."""

import importlib.util
import re

import yaml
from study import ROOT


def test_config_reference_is_in_step_with_the_schema():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert (ROOT / "docs" / "config.md").read_text() == reference.render(), "run `make format`"


def test_shipped_config_explains_every_key():
    text = (ROOT / "config.yaml").read_text()
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    for key in schema["properties"]:
        assert re.search(rf"^(# )?{key}:", text, re.M), f"config.yaml does not show {key}"


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
