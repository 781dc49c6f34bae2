"""pyproject.toml, constraints.txt, environment.yml and what is installed agree with each other."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = [Requirement(line) for line in LINES]

# The first and a late patch release of each supported Python: a marker may name a patch release.
PYTHONS = [f"3.{minor}.{patch}" for minor in (10, 11, 12, 13) for patch in (0, 30)]

# Each CUDA build of torch brings its own versions of these, so they are not pinned.
CUDA_LIBRARIES = ("cuda-", "nvidia-", "triton")


def applies(requirement: Requirement, python: str) -> bool:
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0], "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pinned(name: str, python: str) -> list[Version]:
    """The versions that constraints.txt pins for one package on one Python: one, if all is well."""
    name = canonicalize_name(name)
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == name and applies(pin, python)]
    return [Version(specifier.version) for pin in pins for specifier in pin.specifier]


def test_every_constraint_is_an_exact_pin():
    for pin in PINS:
        specifiers = list(pin.specifier)
        assert len(specifiers) == 1 and specifiers[0].operator == "==" and "*" not in specifiers[0].version, str(pin)
        assert Version(specifiers[0].version).local is None, f"{pin}: a local version shuts out other builds"


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_pinned_twice(python):
    for name in {pin.name for pin in PINS}:
        assert len(pinned(name, python)) <= 1, f"{name} has several pins on Python {python}"


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.name)
def test_declared_dependency_has_one_pin_in_its_range(declared):
    for python in (python for python in PYTHONS if applies(declared, python)):
        versions = pinned(declared.name, python)
        assert len(versions) == 1, f"{declared.name} has {len(versions)} pins on Python {python}"
        assert versions[0] in declared.specifier, f"{declared} does not admit {versions[0]} on Python {python}"


def test_declared_ranges_have_both_ends():
    for declared in DECLARED:
        operators = {specifier.operator for specifier in declared.specifier}
        assert operators in ({">=", "<"}, {"=="}), str(declared)


def test_supported_pythons():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert list(supported.filter(PYTHONS)) == PYTHONS
    assert list(supported.filter(["3.9.30", "3.14.0"])) == []


def test_torch_version():
    assert [line for line in LINES if line.startswith("torch=")] == ["torch==2.13.0"]


def test_conda_environment_is_this_project_and_its_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    assert [channel for channel in environment["channels"] if channel != "nodefaults"] == ["conda-forge"]
    python, pip, through_pip = environment["dependencies"]
    name, _, version = python.partition("=")
    assert name == "python" and f"{version}.0" in PYTHONS, python
    assert pip == "pip"
    assert through_pip == {"pip": ["-c constraints.txt", "-e .[test]"]}


def installed_closure() -> dict[str, str]:
    """Name and version of every installed package that the declared ones bring along."""
    found, seen = {}, set()
    waiting = [declared for declared in DECLARED if declared.marker is None or declared.marker.evaluate()]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras or {""})
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        found[name] = distribution.version
        for child in map(Requirement, distribution.requires or []):
            wanted = child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras)
            if wanted and not child.name.startswith(CUDA_LIBRARIES):
                waiting.append(child)
    return found


def test_installed_environment_is_the_pinned_one():
    python = ".".join(map(str, sys.version_info[:3]))
    installed = installed_closure()
    assert len(installed) > 100
    for name, version in installed.items():
        public = Version(Version(version).public)
        assert pinned(name, python) == [public], f"{name} {version} is installed, pinned is {pinned(name, python)}"
