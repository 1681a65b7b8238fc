"""The Dockerfile and its build context."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser
from rendering import ROOT


@pytest.fixture(scope="module")
def steps():
    parser = DockerfileParser(fileobj=open(ROOT / "Dockerfile", "rb"))
    return [(step["instruction"], step["value"]) for step in parser.structure if step["instruction"] != "COMMENT"]


@pytest.fixture(scope="module")
def runtime(steps):
    """The steps of the last stage."""
    last = max(index for index, (instruction, _) in enumerate(steps) if instruction == "FROM")
    return steps[last:]


@pytest.mark.parametrize("file", ["Dockerfile", "examples/python/primes/Dockerfile"])
def test_hadolint_reports_nothing(file):
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, ROOT / file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_image_contains_no_compiler(steps, runtime):
    stages = [value for instruction, value in steps if instruction == "FROM"]
    assert len(stages) == 2 and stages[0].startswith("rust:") and "slim" in stages[1]
    copies = [value for instruction, value in runtime if instruction == "COPY"]
    assert copies == ["--from=build /out/kafleet /usr/local/bin/kafleet"]


def test_both_stages_use_one_distribution(steps):
    # A binary linked against a newer libc or OpenSSL than the image has does not start.
    assert all("${DEBIAN}" in value for instruction, value in steps if instruction == "FROM")


def test_container_runs_as_an_unprivileged_user(runtime):
    users = [value for instruction, value in runtime if instruction == "USER"]
    assert re.fullmatch(r"([1-9]\d*):([1-9]\d*)", users[-1])


def test_entrypoint_is_the_program(runtime):
    entries = [value for instruction, value in runtime if instruction in ("ENTRYPOINT", "CMD")]
    assert entries == ['["kafleet"]']
    assert ("EXPOSE", "8080 9464") in runtime


def test_toolchain_satisfies_rust_version(steps):
    wanted = re.search(r'^rust-version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    given = dict(value.split("=") for instruction, value in steps if instruction == "ARG")["RUST"]
    assert version(given) >= version(wanted)


def test_included_files_are_in_the_build_context():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    named = re.compile(r'include_(?:str|bytes|dir)!\(\s*(?:concat!\(env!\("CARGO_MANIFEST_DIR"\),\s*)?"([^"]+)"')
    for source in (source for folder in ("src", "crates") for source in (ROOT / folder).rglob("*.rs")):
        for path in named.findall(source.read_text()):
            base = ROOT if path.startswith("/") else source.parent
            file = (base / path.lstrip("/")).resolve().relative_to(ROOT.resolve())
            assert any(fnmatch.fnmatch(str(file), rule) or Path(rule) in file.parents for rule in allowed), f"{source}: {path}"


def version(text):
    return [int(part) for part in text.split(".")]
